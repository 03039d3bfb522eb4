"""Uploaded files of candles: stored and checked as untrusted input."""
