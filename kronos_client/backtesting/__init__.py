"""Backtests: forecasts of past windows as ordinary jobs, kept on disk, and their scores. No torch.

run.py          reads the candles, makes the jobs that are left, and takes their outcomes
window_plan.py  which windows are forecast
store.py        the forecasts on disk
reporting.py    report.json, report.html and forecasts.parquet
calibrating.py  a calibration from a backtest
"""
