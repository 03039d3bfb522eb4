"""This package's commands as child processes: command lines, and the choice of the model."""

from kronos_cli.settings import CliSettings
from kronos_model.processes.children import module_command

BUNDLED_MODEL = "kronos-tiny"


def own_command(*arguments: str) -> list[str]:
    """The command line of a child process that runs ``kronos`` with these arguments."""
    return module_command("kronos_cli", *arguments)


def model_choice(settings: CliSettings, model: str | None, tokenizer: str | None) -> dict[str, str]:
    """The variables that choose a worker's checkpoint: from options, else settings, else the bundled one."""
    given = {"KRONOS_MODEL": model, "KRONOS_TOKENIZER": tokenizer}
    if model is None and settings.model is None:
        # A revision that is set belongs to another model. The bundled model has none.
        given |= {"KRONOS_MODEL": BUNDLED_MODEL, "KRONOS_MODEL_REVISION": "", "KRONOS_TOKENIZER_REVISION": ""}
    return {name: value for name, value in given.items() if value is not None}


def engine_choice(*, is_compiled: bool = False) -> dict[str, str]:
    """The variables with which a worker's first job does not wait until the native kernels are compiled."""
    return {} if is_compiled else {"KRONOS_ENGINE": "torch"}
