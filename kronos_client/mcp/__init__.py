"""Tools for agents over the Model Context Protocol: forecasts, backtests, and what runs where.

Nothing else in this package imports it, and it needs the extra ``mcp``. A call passes these files in order:

service.py    what the tools need of the place they run in: the core, files, and what the caller may do
forecasts.py  forecasts and chances of events; backtests.py: backtests; operation.py: models, workers, jobs
server.py     a server with all of them, whose errors have codes
stdio.py      the server for one user, over standard input and output; over HTTP: ``api_stub.agents``

A further subject is a class like those three, in a file of its own, and an entry in ``server.SUBJECTS``.
"""
