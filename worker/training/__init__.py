"""What a finetuning worker does with a job. No torch: training is a process of its own.

process.py      the worker: its device, its folders, its status
run.py          one job, from its fields to a registered model; job_errors.py: the errors it may end with
child.py        the training process: started, stopped, started again
job_folder.py   what a job leaves for the worker that goes on with it; job_files.py: what its training reads
job_notes.py    how often training was started; data_folder.py, start_models.py: what a job may name
"""
