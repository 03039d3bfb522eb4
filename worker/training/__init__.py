"""Finetuning jobs and backtests inside a worker. No torch: training runs in its own process."""
