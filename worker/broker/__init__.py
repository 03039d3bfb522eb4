"""Messages in Redis: how a worker takes them, and what it does with unreadable ones.

connecting.py    connects to Redis without a limit of tries
queue_watch.py   the connection for takes, on which Redis names the queues that change
transport.py     kombu's Redis transport with our own scripts
consuming.py     takes messages off the queues; messages.py: checks each before Celery receives it
deliveries.py    messages that workers have taken
service_order.py which waiting job a worker takes next
claims.py        a worker's claims on its jobs, and how often it renews them; begin.lua (in
                 kronos_client/redis/lua) refuses a job that another worker has claimed
result_backend.py  Celery's way to store a job's state, until it expires
outcomes.py      ends jobs, keeps the outcomes that Redis refuses and names the reason
steps.py         the steps of Celery's consumer that do this
"""
