"""Middleware for every request: keys, limits, the log."""
