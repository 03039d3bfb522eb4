"""The HTTP API: forecasts, finetuning and operation. It only enqueues jobs and reads their results."""
