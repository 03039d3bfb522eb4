"""Feeds: windows of bars of many series, kept in Redis by appends. A preview: nothing forecasts them yet.

In the order in which bars meet them: ``feed`` (what callers have), ``options``, ``bars`` (bars as blocks),
``window`` (what an append changes), ``store`` (keys and scripts).
"""
