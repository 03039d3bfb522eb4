"""What one must know of a model before one believes its forecast."""

from kronos_cli.stack.own_commands import BUNDLED_MODEL
from kronos_model.checkpoints.source import is_trained


def caution_about(model: str) -> str | None:
    """What one must know of a model before one believes its forecast; None where there is nothing to say."""
    if is_trained(model) is False:
        return "an untrained checkpoint: its forecast means nothing"
    if model == BUNDLED_MODEL:
        return "a model of synthetic candles, for trying the service, not for trading"
    return None
