"""Messages in Redis: how a worker takes them, and what it does with unreadable ones.

transport.py     kombu's Redis transport with our own scripts; self_check.py: whether kombu fits it
consuming.py     takes messages off the queues; messages.py: checks each before Celery receives it
deliveries.py    messages taken and not acknowledged yet
claims.py        a worker's claims on its jobs; result_backend.py: their states and outcomes in Redis
service_order.py which waiting job a worker takes next
queue_watch.py   notices when a queue changes; steps.py: the steps of Celery's consumer
"""
