"""The settings that workers, the HTTP API and the command line share, and the models that they name."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pydantic import Field, field_validator

from kronos_client.settings import ClientSettings

_PART: Final = r"\s*(?P<{0}>[^=@\s][^=@]*?)(?:@(?P<{0}_revision>[^=]*[^=\s]))?\s*"
_ENTRY: Final = re.compile(_PART.format("model") + f"(?:={_PART.format('tokenizer')})?")


@dataclass(frozen=True)
class ModelSpec:
    """A model to load. Jobs name it by ``model``.

    Attributes:
        model, tokenizer: A bundled name, a folder or a hub id. By default, the default model, and the
            tokenizer that belongs to the model.
        model_revision, tokenizer_revision: Branch, tag or commit; for hub ids only.
    """

    model: str | None
    tokenizer: str | None = None
    model_revision: str | None = None
    tokenizer_revision: str | None = None


def parse_model_specs(text: str | None) -> dict[str, ModelSpec]:
    """Read a list of models separated by commas, by their names in jobs. Raises ValueError."""
    names: dict[str, ModelSpec] = {}
    for entry in filter(None, map(str.strip, (text or "").split(","))):
        match = _ENTRY.fullmatch(entry)
        if match is None:
            raise ValueError(
                f"{entry!r} is not a model's name; write MODEL, MODEL=TOKENIZER or MODEL@REVISION"
            )
        if match["model"] in names:
            raise ValueError(f"{match['model']!r} is listed twice: remove one")
        names[match["model"]] = ModelSpec(**match.groupdict())
    return names


class ServiceSettings(ClientSettings):
    """The settings that workers, the HTTP API and the command line share."""

    models: str | None = Field(
        None,
        description="further models that jobs may name, separated by commas: `MODEL` or `MODEL=TOKENIZER`, "
        "each with or without `@REVISION`",
    )
    model_folder: Path | None = Field(
        None,
        description="folder of registered models, which finetuning writes and forecast jobs name, and of "
        "backtests' reports",
    )
    data_folder: Path | None = Field(
        None,
        description="folder of candles that finetuning jobs and backtests name; default: jobs must carry "
        "their candles",
    )
    log_format: Literal["text", "json"] = Field(
        "text", description="format of logs; `json` is one object per line, and one line per job"
    )
    api_host: str = Field(
        "127.0.0.1", description="address that the HTTP API serves; one that other machines reach needs keys"
    )
    api_port: int = Field(8000, ge=0, le=65535, description="port of the HTTP API; 0 takes a free one")

    @field_validator("models")
    @classmethod
    def _check_models(cls, text: str | None) -> str | None:
        parse_model_specs(text)
        return text

    @property
    def further_models(self) -> dict[str, ModelSpec]:
        """The models that jobs may name in addition to the worker's own."""
        return parse_model_specs(self.models)
