"""What a finetuning worker does with a job. No torch: training is a process of its own.

process.py       the worker: its device, its folders, what it tells the world
run.py           one job, from its checked fields to a registered model; endings.py: what it may end by
training.py      the training process: started, heard, stopped, started again
job_folder.py    what a job leaves for the worker that goes on with it
data_folder.py   which candles a job may name; start_models.py: which models
"""
