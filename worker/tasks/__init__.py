"""The Celery tasks. Each file has the name of its task."""
