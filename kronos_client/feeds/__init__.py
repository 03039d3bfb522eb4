"""Feeds: windows of bars of many series, kept in Redis by appends and forecast by workers at each new bar.

In the order in which bars meet them: ``feed`` (what callers have), ``options``, ``bars`` (bars as bytes),
``appending`` (which bars have ended, and what an append may change), ``blocks`` (how a series' bars are cut),
``store`` (scripts), ``stored`` (the keys, and what it reads and writes), ``job`` (a worker's part),
``scores``, ``adaptive`` and ``drift`` (of earlier forecasts), and ``latest`` (what comes back).
"""
