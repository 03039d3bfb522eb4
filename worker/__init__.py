"""The Celery worker: ``celery -A worker.app worker``.

settings.py      what it reads of the environment; config.py: Celery's configuration; app.py: the app
celery_types.py  types of what Celery, kombu and JSON give
lifecycle.py     Celery's signals: start, device, model, end
process.py       what a worker's process is in both roles; deadline.py: the deadline of a job
broker           takes messages, claims jobs and ends them
tasks            the tasks and control commands
inference        computes forecasts; training: finetuning jobs and backtests
monitoring       metrics, log lines and announcements
"""
