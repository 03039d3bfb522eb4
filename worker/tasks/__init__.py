"""The Celery tasks; a task's file is named like its task."""
