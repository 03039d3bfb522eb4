"""Candles as data: columns, timestamps, calendars, validation and files. No torch."""
