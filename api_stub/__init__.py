"""One app on the workers: forecasts, finetuning and operation over HTTP. It only enqueues and reads."""
