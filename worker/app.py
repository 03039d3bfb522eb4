"""The Celery app of workers and of Flower.

Start a worker with ``celery -A worker.app worker`` or ``kronos worker``; it picks its own queue.
"""

from worker.celery_config import make_app
from worker.settings import get_settings

# The current app, because Flower looks results up on that one. Clients make apps of their own.
app = make_app(get_settings(), for_worker=True)
