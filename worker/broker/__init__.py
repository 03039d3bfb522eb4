"""Messages in Redis: how a worker takes them, and what becomes of unreadable ones.

transport.py     kombu's Redis transport, with these in place of its own; self_check.py: does kombu fit
consuming.py     what a worker takes off its queues; messages.py: a message checked before Celery sees it
deliveries.py    messages taken and not acknowledged yet
claims.py        a worker's hold on its jobs; result_backend.py: their states and outcomes in Redis
ageing.py        moves old messages of low priority up
queue_watch.py   notices when a queue changes; steps.py: what runs in a worker for all this
"""
