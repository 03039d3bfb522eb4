"""What operators see of a worker: metrics, logs, and its announcement."""
