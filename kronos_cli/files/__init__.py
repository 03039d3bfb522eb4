"""``kronos forecast``: forecasts of candle files, continued after a stop.

- ``inputs``: the series of the files.
- ``run``: sends them and waits.
- ``output``: tables and JSON, printed or written.
- ``errors``: errors about files, with the command's options.
"""
