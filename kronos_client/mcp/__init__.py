"""Tools for agents over the Model Context Protocol: forecasts, backtests, and what runs where.

Nothing else in this package imports it, and it needs the extra ``mcp``. A call passes these files in order:

service.py    what the tools need of the place they run in: the core, files, and what the caller may do
forecasts.py  forecasts and chances of events
running.py    backtests, models, workers and jobs
feeds.py      newest forecasts of feeds
server.py     a server with all of them, whose errors have codes

``kronos_cli.commands.mcp`` serves one user over standard input and output, ``api_stub.agents`` serves HTTP.

A further subject is a file like those three with a function ``add``, and an entry in ``server.SUBJECTS``.
"""
