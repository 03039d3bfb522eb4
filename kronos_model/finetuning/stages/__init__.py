"""Training one stage, the tokenizer or the predictor, from its windows to its best weights.

batches.py       windows as batches, their order, seeds, and each process's share
stage.py         the losses of a stage, its optimiser, and how the learning rate falls
cpu_products.py  faster matrix products on some CPUs
loop.py          the training loop, and its events
saved_state.py   what is saved, from which a killed run goes on
"""
