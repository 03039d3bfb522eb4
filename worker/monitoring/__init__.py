"""What operators see of a worker: metrics, logs, and its name.

metrics.py      Prometheus metrics
heartbeat.py    the announcement of a worker; rates.py: how fast counts grew, for the announcement
job_log.py      one log line for each job; node_name.py: the name that Flower shows
"""
