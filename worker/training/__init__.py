"""Finetuning jobs inside a worker. No torch: training runs in its own process.

process.py      the worker: its device, its folders, its status
run.py          one job, from its fields to a registered model; job_errors.py: the errors it may end with
child.py        the training process: started, stopped, started again
job_folder.py   files for the worker that continues the job; job_files.py: files that training reads
job_notes.py    counts the starts of training; data_folder.py, start_models.py: what a job may name
"""
