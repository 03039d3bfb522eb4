"""The wire: what a job, a result and an error look like. Apps and workers share it; no torch.

names.py          tasks, queues, keys in Redis, and ids; states.py: Celery's states
errors.py         the error codes, ``JobError``, and pydantic's errors as such
columns.py        a column of numbers; dataframes.py: frames of vendors, with our names
forecast.py       a forecast's fields; finetune.py, backtest.py: the other kinds of jobs, with their results
feed.py           bars for a feed, and the updates of its forecasts; compressed.py: as Redis keeps them
job_limits.py     the limits of a job's size
jobs.py           reads a job, checks its size, and makes arrays
results.py        a forecast's result; chart.py: as a picture; notebook.py: as notebooks show it
calibration.py    what corrects its quantiles
model_info.py     the model, as results and statuses name it
worker_status.py  what workers announce
schemas.py        the JSON schemas and examples that docs/ publishes
"""
