"""Finetuning jobs and backtests inside a worker. No torch: training runs in its own process.

Read in this order: ``finetune_process`` (the worker), ``long_run`` (how any long job runs), ``job_folder``
and ``job_inputs`` (its files), ``finetune_run``, ``backtest_run``.
"""
