"""Starting, watching and ending child processes."""
