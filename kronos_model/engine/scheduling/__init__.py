"""Decides what a step computes and which job has how many slots. No torch.

- ``scheduler``: what the engine calls; the chunks and batches of a step, which become
  smaller after one ran out of memory.
- ``slots``: gives slots to jobs, and suspends paths that must make room.
- ``shares``: counts what each job has, and says how much it should have.
- ``path_table``: the columns that a decode step needs of each path, and the parts of the cache that it reads.
"""
