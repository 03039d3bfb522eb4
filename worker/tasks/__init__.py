"""The Celery tasks. Each file has the name of its task; finetuning workers' tasks are in ``long_jobs.py``."""
