"""The timestamps of future bars, inferred from a lookback or taken from a named calendar.

named_calendar.py by a named calendar: an exchange's, "24/7", or "weekdays"
exchange.py      an exchange's sessions, and the bars in them
spacing.py       by the lookback's own spacing; no calendar of holidays is used
sessions.py      intraday bars with breaks; the weekdays on which there are bars
offsets.py       a warning about offsets without a zone
"""
