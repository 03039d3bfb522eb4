"""Starting, reading and ending child processes. No torch, no Celery."""
