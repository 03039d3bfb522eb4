"""Middleware for every request: keys and limits, methods, the log."""
