"""``kronos forecast``: candle files in, forecasts out, and going on after a stop.

run.py          one run over all files; bulk.py: the job of each, and its outcome
inputs.py       which files are meant; kronos_model/bars/files reads them
output.py       the folder or table of forecasts; record.py: one forecast, in each format
chart.py        a forecast as a picture; caution.py: what to know before you trust it
"""
