"""DeepSpeed's configuration: tables, and their loaders."""
