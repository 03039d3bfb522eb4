"""``kronos forecast``: forecasts of candle files, continued after a stop."""
