"""The command line: ``./kronos`` in a checkout, ``kronos`` when installed.

- ``installer`` makes the environment of a checkout. ``command_list`` names the commands.
- ``main`` calls one of ``commands``; ``one_line_errors`` prints its error, in the words of ``wording``.
- ``files`` forecasts candle files, ``checks`` finds what is wrong, ``stack`` runs one machine's processes.
- ``terminal`` prints tables and JSON. ``settings`` has what commands read of the environment.
"""
