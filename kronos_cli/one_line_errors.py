"""OneLineErrors: a command that fails prints one line instead of a traceback."""

import json
from typing import Any, Final

import click
from redis.exceptions import AuthenticationError, RedisError

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.redis.connection import REFUSED
from kronos_client.settings import SettingsError
from kronos_model.errors import KronosError
from kronos_model.processes.children import LocalStackError

OWN_PACKAGES: Final = ("api_stub", "kronos_cli", "kronos_client", "kronos_model", "worker")
API_PACKAGES: Final = ("fastapi", "psutil", "uvicorn")
"""Packages that the extra [worker] does not install."""

EXPECTED: Final = (
    click.ClickException, click.Abort, ModuleNotFoundError,
    KronosError, JobError, LocalStackError, RedisError, SettingsError,
)  # fmt: skip
_AS_JSON: Final = f"{__name__}.as_json"


class OneLineErrors(click.Group):
    """A group whose commands print expected errors as one line, without a traceback.

    With ``--json`` an object ``error`` with ``code`` and ``message`` also goes to standard output.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # Read before parsing, because a parse error is printed as JSON too.
        ctx.meta[_AS_JSON] = "--json" in args
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # click would exit with 1, as for a failure
            raise SystemExit(130) from None
        except EXPECTED as error:
            if isinstance(error, ModuleNotFoundError) and _is_defect(error):
                raise
            if ctx.meta[_AS_JSON]:
                click.echo(json.dumps({"error": error_as_json(error)}))
            if isinstance(error, click.ClickException | click.Abort):
                raise
            raise click.ClickException(message_of(error)) from error


def _is_defect(error: ModuleNotFoundError) -> bool:
    return error.name is None or error.name.partition(".")[0] in OWN_PACKAGES


def error_is_printed(ctx: click.Context) -> None:
    """Print no further JSON for the error: the command's own output already holds it."""
    ctx.meta[_AS_JSON] = False


def error_as_json(error: Exception) -> dict[str, str]:
    """``code`` and ``message``. The code is from the contract or from ``code_of``."""
    message = error.message if isinstance(error, KronosError | JobError) else message_of(error)
    return {"code": code_of(error), "message": message}


def code_of(error: Exception) -> str:
    """The code of an error that ends a command. docs/use/cli.md lists all codes."""
    if isinstance(error, KronosError | JobError):
        return error.code
    codes = (
        (RedisError, str(ErrorCode.BROKER_UNREACHABLE)),
        (SettingsError, "SETTINGS"),
        (LocalStackError, "LOCAL_STACK"),
        (ModuleNotFoundError, "NOT_INSTALLED"),
        (click.UsageError, "USAGE"),
        (click.Abort, "ABORTED"),
    )
    return next((code for kind, code in codes if isinstance(error, kind)), "FAILED")


def message_of(error: Exception) -> str:
    """The message of an error for the user."""
    if isinstance(error, AuthenticationError):
        return f"{REFUSED} (KRONOS_REDIS_URL); it says: {error}"
    if isinstance(error, RedisError):
        return f"Redis (KRONOS_REDIS_URL) does not answer as it should: {error}"
    if isinstance(error, ModuleNotFoundError):
        package = str(error.name).partition(".")[0]
        extra = "api" if package in API_PACKAGES else "worker"
        return f'{package} is not installed: ./kronos setup, or pip install ".[{extra}]", in the checkout'
    if isinstance(error, click.ClickException):
        return error.format_message()
    return "Aborted!" if isinstance(error, click.Abort) else str(error)
