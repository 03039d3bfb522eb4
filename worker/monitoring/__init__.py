"""What operators see of a worker: metrics, logs, and its name.

metrics.py      Prometheus metrics; load_window.py: the last seconds, for the status
logs.py         logs as JSON; job_log.py: one line a job
node_name.py    the name that Flower shows
"""
