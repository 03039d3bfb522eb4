"""``kronos forecast``: forecasts of candle files, continued after a stop.

run.py          one run over all files; bulk.py: the candles of each job
inputs.py       the candle files that a command names; kronos_model/bars/files reads them
output.py       the folder or table of forecasts; record.py: one forecast in each format
chart.py        a forecast as a picture; caution.py: the caution about a model
"""
