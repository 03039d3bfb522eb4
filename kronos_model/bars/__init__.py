"""Candles as data: columns, timestamps, calendars, validation and files. No torch.

files/           from files of candles to arrays
columns.py       the arrays: checks, scaling, time features, repair
timestamps.py    times as texts and as arrays
missing.py       bars without prices, and bars that are not there
calendar/        the times of future bars
synthetic.py     candles for the demo, tests and benchmarks
"""
