"""Candle files, as people keep them. One set of rules for every reader.

A file goes through these modules in turn:

find.py          which files are meant
options.py       what the form of a file does not say
content.py       bytes to text, and limits on how much of it there may be
csv_cells.py     text to cells; parquet_cells.py: the same for Parquet
vendors.py       how vendors write files: titles, orders, encodings, units
header.py        which column is which
order.py         the same for a file without titles, proved by its values
arrangement.py   tickers side by side, and cells that only a vendor means, to plain rows
clock.py         cells to times
numbers.py       cells to numbers, with the decimal sign that they prove
table.py         a table of numbers and times
faults.py        the rows that cannot be used, by line
lookback.py      the last bars of one file, for a forecast, and the file in words
instruments.py   all bars of many files, for training, and a report (report.py)
"""
