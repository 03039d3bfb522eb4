"""The quality of forecasts, compared with actual bars and with naive forecasts. No torch.

windows.py       which windows are forecast, and which of them overlap
bootstrap.py     the first forecast that a model must beat
naive.py         further ones
scores.py        the scores of sampled closes
report.py        differences with intervals, and verdicts
calibration.py   corrections of a model's quantiles
"""
