"""Candle files, as people keep them. One set of rules for every reader; the web page follows the same ones.

A file goes through these modules in turn:

find.py          which files are meant
csv_cells.py     text to cells; parquet_cells.py: the same for Parquet
header.py        which column is which
clock.py         cells to times
table.py         cells to a table of numbers and times
lookback.py      the last bars of one file; the first cell that cannot be used is an error
instruments.py   all bars of many files; rows that cannot be used are dropped and counted (report.py)
"""
