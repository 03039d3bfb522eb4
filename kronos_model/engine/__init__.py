"""The decoding engine: every forecast, from Python or from a queue, goes through ``Engine``.

In the order in which a series meets them (what decides imports no torch):

- ``build``: makes an engine for a loaded model; ``choice``: native kernels or PyTorch; ``memory``: how many
  paths fit.
- ``generation``: a series that was submitted, and its handle; ``sequence``: some of its paths while they run.
- ``engine``: the loop; each step schedules, computes and updates; ``reports``: times and load.
- ``scheduling``: decides what a step computes.
- ``runner``: holds the tensors, and has them computed.
- ``prefill``: work on many bars at once; ``decoding``: a step of one bar for every path.
- ``transformer``: the model's layers and cache in PyTorch; ``native``: the same in kernels for CPUs.
"""
