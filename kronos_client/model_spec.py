"""How an operator names models: ``MODEL`` or ``MODEL=TOKENIZER``, each may end in ``@REVISION``. No torch."""

from dataclasses import dataclass


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
    for entry in (text or "").split(","):
        if not entry.strip():
            continue
        first, has_tokenizer, second = entry.partition("=")
        model, model_revision = _split_revision(first, entry)
        tokenizer, tokenizer_revision = _split_revision(second, entry) if has_tokenizer else (None, None)
        if model in names:
            raise ValueError(f"{model!r} is listed twice: remove one")
        names[model] = ModelSpec(model, tokenizer, model_revision, tokenizer_revision)
    return names


def _split_revision(part: str, entry: str) -> tuple[str, str | None]:
    name, has_revision, revision = part.strip().partition("@")
    if not name or "=" in part or (has_revision and not revision):
        raise ValueError(
            f"{entry.strip()!r} is not a model's name; write MODEL, MODEL=TOKENIZER or MODEL@REVISION"
        )
    return name, revision or None
