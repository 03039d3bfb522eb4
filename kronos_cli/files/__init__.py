"""``kronos forecast``: candle files in, forecasts out, and going on where it was stopped.

command.py      one run over all files; bulk.py: the job of each, and its outcome
inputs.py       which files are meant; kronos_model/bars/files reads them
output.py       where forecasts are kept; record.py: one of them, in each format
chart.py        a forecast as a picture; caution.py: what to know before believing it
"""
