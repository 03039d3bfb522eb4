"""Uploaded files of candles: checking and storing them, without trusting them."""
