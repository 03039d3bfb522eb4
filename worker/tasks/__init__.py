"""The tasks and control commands of a worker.

attempt.py      how one delivery of a job gets its claim, and goes back to the queue
forecast.py     ``kronos.forecast``, for many jobs at once
long_jobs.py    ``kronos.finetune`` and ``kronos.backtest``
controls.py     the control command that loads a model
both_roles.py   what workers of both roles answer
"""
