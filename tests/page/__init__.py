"""The web page in a real browser, on the real API, Redis and workers."""
