"""A real worker whose model costs nothing: ``celery -A benchmarks.support.null_worker worker``."""

from benchmarks.support.null_engine import build_null_engine
from kronos_model.engine import build

# Before anything of the worker takes the function by its name: the product needs no way in for benchmarks.
build.build_engine = build_null_engine  # type: ignore[assignment]

from worker.app import app  # noqa: E402

__all__ = ["app"]
