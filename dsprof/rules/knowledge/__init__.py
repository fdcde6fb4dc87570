"""Knowledge of rules: names and facts as data, with their loaders."""
