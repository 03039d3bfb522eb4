"""The HTTP API's routes, one module for each resource.

- What requests share: ``documented`` (JSON bodies), ``query``, ``submission`` (how jobs are sent and waited
  for), ``tables`` (answers as CSV, Parquet or Arrow), ``job_views`` (jobs in answers).
- Predictions in one request: ``predict`` (routes), ``predictions`` (fields), ``prediction_jobs`` (jobs).
- Jobs: ``jobs`` (of all kinds), ``backtest_reports``.
- Files: ``candles``, ``file_forecasts``, ``datasets``.
- Operation: ``models``, ``workers`` (and the largest jobs they accept), ``health``, ``metrics``.
"""
