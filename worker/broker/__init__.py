"""Messages in Redis: how a worker takes them, and what it does with unreadable ones.

connecting.py    connects to Redis without a limit of tries
transport.py     kombu's Redis transport with our own scripts; self_check.py: whether kombu fits it
queue_watch.py   notices when a queue changes
consuming.py     takes messages off the queues; messages.py: checks each before Celery receives it
deliveries.py    messages that workers have taken
service_order.py which waiting job a worker takes next
claims.py        a worker's claims on its jobs
result_backend.py  Celery's way to store a job's state
outcomes.py      ends jobs, and keeps the outcomes that Redis refuses; store_health.py: whether it does
steps.py         the steps of Celery's consumer that do this
"""
