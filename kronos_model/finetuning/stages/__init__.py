"""Training one stage, the tokenizer or the predictor, from its windows to its best weights.

windows.py       windows as a dataset
batches.py       their order, the seeds of the steps, and each process's share
stage.py         the losses of a stage, its optimiser and schedule
cpu_products.py  faster matrix products on some CPUs
loop.py          the training loop, and its events
state.py         what is saved
"""
