"""The wire: what a job, a result and an error look like. Apps and workers share it; no torch.

names.py       tasks, queues, priorities, keys in Redis
errors.py      the one list of error codes, and the exception that carries one
paths.py       paths of a worker's, kept out of messages
columns.py     columns as JSON arrays or base64
job_limits.py  how large a job may be; limits.py: the checks of it
jobs.py        a forecast job, and reading one from outside
preparing.py   a job's series as arrays, with their future timestamps and seeds
results.py     a forecast's result
finetune.py    a finetuning job, and reading one from outside
instruments.py a finetuning job's inline candles as arrays
finetune_results.py  a finetuning job's progress and result
schemas.py     the JSON schemas in docs/
"""
