"""The training side between the hooks and the writer."""
