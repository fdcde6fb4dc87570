"""What rules know of the world: names and facts as data, with their loaders."""
