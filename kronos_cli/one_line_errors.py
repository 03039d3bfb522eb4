"""OneLineErrors: a command that fails prints one line instead of a traceback."""

import json
from typing import Any, Final

import click
from redis.exceptions import AuthenticationError, RedisError

from kronos_cli.wording import in_own_words
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.redis.connection import CLUSTER_REFUSED, OF_A_CLUSTER, REFUSED
from kronos_client.settings import SettingsError
from kronos_model.errors import KronosError
from kronos_model.processes.children import LocalStackError

OWN_PACKAGES: Final = ("api_stub", "kronos_cli", "kronos_client", "kronos_model", "worker")
API_PACKAGES: Final = ("fastapi", "psutil", "uvicorn")
CLI_PACKAGES: Final = (
    "httpx2", "huggingface_hub", "matplotlib", "packaging", "pandas", "pyarrow", "rich", "scipy",
    "yaml",
)  # fmt: skip
COMPUTING_COMMANDS: Final = ("demo", "devices", "flower", "up", "worker")
"""Commands for which the extra [cli] is not enough."""

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
            if isinstance(error, ModuleNotFoundError) and _package(error) in ("None", *OWN_PACKAGES):
                raise  # a defect
            content = error_as_json(error)
            if ctx.meta[_AS_JSON]:
                click.echo(json.dumps({"error": content}))
            if isinstance(error, click.ClickException | click.Abort):
                raise
            has_code = isinstance(error, KronosError | JobError)
            raise click.ClickException(
                in_own_words(str(error)) if has_code else content["message"]
            ) from error


def error_is_printed(ctx: click.Context) -> None:
    """Print no further JSON for the error: the command's own output already holds it."""
    ctx.meta[_AS_JSON] = False


def error_as_json(error: Exception) -> dict[str, str]:
    """``code`` and ``message`` of an error that ends a command. docs/use/cli.md lists all codes."""
    code, message = "FAILED", str(error)
    match error:
        case KronosError() | JobError():
            code, message = error.code, in_own_words(error.message)
        case AuthenticationError():
            code, message = ErrorCode.BROKER_UNREACHABLE, f"{REFUSED}; it says: {error}"
        case RedisError() if isinstance(error, OF_A_CLUSTER):
            code, message = ErrorCode.REDIS_CLUSTER, CLUSTER_REFUSED
        case RedisError():
            code = ErrorCode.BROKER_UNREACHABLE
            message = f"Redis (KRONOS_REDIS_URL) does not answer as it should, run kronos check: {error}"
        case SettingsError():
            code = "SETTINGS"
        case LocalStackError():
            code = "LOCAL_STACK"
        case ModuleNotFoundError():
            code, package = "NOT_INSTALLED", _package(error)
            remedy = f'./kronos setup, or pip install ".[{_extra(package)}]", in the checkout'
            message = f"{package} is not installed: {remedy}"
        case click.Abort():
            code, message = "ABORTED", "Aborted!"
        case click.ClickException():
            code = "USAGE" if isinstance(error, click.UsageError) else code
            message = error.format_message()
    return {"code": str(code), "message": message}


def _package(error: ModuleNotFoundError) -> str:
    return str(error.name).partition(".")[0]


def _extra(package: str) -> str:
    """The smallest extra with this package that the running command can do with."""
    command = click.get_current_context().find_root().invoked_subcommand
    if package in API_PACKAGES or command == "api":
        return "api"
    if package == "mcp":
        return "cli,mcp"
    return "cli" if package in CLI_PACKAGES and command not in COMPUTING_COMMANDS else "worker"
