"""What clients and workers share in Redis. The scripts are in ``lua/``, whose README lists all keys.

url.py         user, password and TLS of a URL
connection.py  connections, and calls that are sent once
scripts.py     reads the scripts
queues.py      names of queues and lists, and what waits in them
routing.py     announcements of workers, and the queue of a job
message.py     a job as a Celery message
admission.py   sends jobs, unless an id or a full queue forbids it
job_store.py   records, claims and outcomes of jobs
"""
