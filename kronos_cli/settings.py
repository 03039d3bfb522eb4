"""The command line's settings: those of a worker, and those of Flower."""

from functools import cache

from pydantic import SecretStr

from worker.settings import WorkerSettings


class CliSettings(WorkerSettings):
    """The settings of ``./kronos`` and its commands."""

    flower_user: str = "kronos"
    """Flower's user name"""
    flower_password: SecretStr | None = None
    """Flower's password; without one, `up` generates it and `flower` refuses to start"""


@cache
def get_settings() -> CliSettings:
    """The settings of this process, read on first use."""
    return CliSettings.load()
