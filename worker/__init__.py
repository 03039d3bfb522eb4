"""The Celery worker: ``celery -A worker.app worker``."""
