"""What clients and workers share in Redis. The scripts are in ``lua/``, whose README lists all keys.

connection.py  the URL and TLS, connections, calls that are sent once, scripts
queues.py      names of queues and lists, and what waits in them
routing.py     announcements of workers, and the queue of a job
message.py     a job as a Celery message
admission.py   sends jobs, unless an id or a full queue forbids it
job_store.py   records, claims and outcomes of jobs
"""
