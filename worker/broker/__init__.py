"""Messages in Redis: the queues they wait in, how a worker takes them, and what becomes of unreadable ones.

queues.py           a queue's lists, one for each priority; ageing.py moves old messages up
deliveries.py       messages taken and not acknowledged yet; delivery_scripts.py: how they leave and come back
messages.py         a message looked through before Celery sees it; consuming.py does so with each that comes
queue_watch.py      hears when a queue changes; job_rate.py: how fast it is worked off
shown.py            what others may see of a message's job

``worker/broker/transport.py`` puts these in the place of kombu's own.
"""
