"""How an operator names models: ``MODEL`` or ``MODEL=TOKENIZER``, each may end in ``@REVISION``. No torch."""

import re
from dataclasses import dataclass
from typing import Final

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
