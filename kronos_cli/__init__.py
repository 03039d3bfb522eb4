"""The command line: ``./kronos`` in a checkout, ``kronos`` when installed."""
