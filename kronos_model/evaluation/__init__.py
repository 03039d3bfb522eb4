"""The quality of forecasts, compared with actual bars and with naive forecasts. No torch.

windows.py       which windows are forecast, and which of them overlap
naive.py         forecasts that a model must beat
scores.py        the scores of sampled closes
report.py        differences with intervals, and verdicts
calibration.py   corrections of a model's quantiles
"""
