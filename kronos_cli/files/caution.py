"""The caution that a user needs before trusting a model's forecast."""

from kronos_cli.stack.own_commands import BUNDLED_MODEL
from kronos_model.checkpoints.source import is_trained


def caution_about(model: str) -> str | None:
    """The caution about a model, or None."""
    if is_trained(model) is False:
        return "an untrained checkpoint: its forecast means nothing"
    if model == BUNDLED_MODEL:
        return "a model of synthetic candles, for trying the service, not for trading"
    return None
