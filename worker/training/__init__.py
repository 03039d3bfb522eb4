"""Finetuning jobs inside a worker. No torch: training runs in its own process."""
