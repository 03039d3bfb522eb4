"""The tasks and control commands of a worker.

attempt.py           how one delivery of a job gets its claim, and goes back to the queue
forecast.py          ``kronos.forecast``, for many jobs at once
long_jobs.py         ``kronos.finetune`` and ``kronos.backtest``
status.py            ``kronos.status``
other_role.py        refuses jobs for workers of the other role
celery_controls.py   Celery's own control commands; controls.py: the one that loads a model
"""
