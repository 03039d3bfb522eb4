"""Backtests: forecasts of past windows as ordinary jobs, kept on disk, and their scores. No torch."""
