"""Finetuning jobs inside a worker. No torch: training runs in its own process.

finetune_process.py  the worker: its device, its folders, its status
run.py               one job, from its fields to a registered model; job_errors.py: how it may fail
child.py             the training process: started, stopped, started again; job_notes.py: counts its starts
job_folder.py        files for the worker that continues the job; job_files.py: files that training reads
data_folder.py       what a job may name, with start_models.py
"""
