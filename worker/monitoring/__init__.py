"""What operators see of a worker: metrics, logs, and its name.

metrics.py      Prometheus metrics; load_window.py: the last seconds, for the status
heartbeat.py    the announcement of a worker; job_rate.py: jobs per second, for the announcement
job_log.py      one log line for each job; node_name.py: the name that Flower shows
"""
