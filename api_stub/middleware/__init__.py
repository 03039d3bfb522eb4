"""What every request passes through: keys and limits, methods, the log."""
