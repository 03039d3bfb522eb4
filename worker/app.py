"""The Celery app of workers and of Flower.

Start a worker with ``celery -A worker.app worker`` or ``kronos worker``; it picks its own queue.
"""

from kronos_model.devices.cores import spin_briefly
from worker.config import make_worker_app
from worker.settings import get_settings

# KMP_BLOCKTIME is of LLVM's and Intel's OpenMP; PyTorch's wheels for Linux bring GNU's.
spin_briefly()
# The current app: Flower reads results through it. Clients make their own apps.
app = make_worker_app(get_settings())
