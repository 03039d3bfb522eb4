"""Promotion of a registered version: its name means it, if a backtest says that it is no worse."""

from pathlib import Path
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Request
from fastapi import Path as InPath
from pydantic import BaseModel, ConfigDict, Field

from api_stub.backend import BackendDependency
from api_stub.keys import check_scope, needs
from api_stub.problems import HttpCode, HttpError
from api_stub.routes.documented import json_only
from kronos_client.contract.errors import JobError
from kronos_client.contract.names import MAX_ID_CHARS
from kronos_client.registry.model_registry import ModelRegistry
from kronos_client.registry.promoting import NotPromoted, Promoted, promote_checked
from kronos_client.registry.registered_model import output_folder
from kronos_model.errors import DiskFull, KronosError

router = APIRouter(prefix="/v1/models", tags=["models"], dependencies=[needs("promote"), Depends(json_only)])

NO_VERSION: Final = "no registered version has this id: GET /v1/models has them, such as crypto-hourly@3"
REMEDY: Final = "name in `backtest` one of this version and of that one; a key with admin may `force` it"


class PromotionRequest(BaseModel):
    """What says that the version may be promoted."""

    model_config = ConfigDict(extra="forbid")

    backtest: Annotated[str, Field(max_length=MAX_ID_CHARS)] | None = Field(
        default=None, description="id of a backtest of this version and of the one that its name means now"
    )
    force: bool = Field(default=False, description="promote it whatever a backtest says; needs admin")


class PromotionView(BaseModel):
    """A promoted version."""

    id: str = Field(description="what its name means now", examples=["crypto-hourly@3"])
    before: str | None = Field(description="what it meant before, if that can be used")
    verdict: dict[str, Any] | None = Field(
        description="of the backtest: `verdict`, `difference` in %, `low`, `high`; null if none was needed"
    )


@router.post("/{model_id}/promote")
async def promote_model(
    model_id: Annotated[str, InPath(max_length=MAX_ID_CHARS, examples=["crypto-hourly@3"])],
    body: PromotionRequest,
    request: Request,
    backend: BackendDependency,
) -> PromotionView:
    """Let a name mean this version, if a backtest says that it is no worse than what the name means now.

    Workers use it with the next job. Without that, the answer is NOT_PROMOTED, with the backtest's `verdict`
    in `details`.
    """
    if body.force:
        check_scope(request, "admin")
    folder = backend.settings.model_folder
    done = await backend.call(_promote, folder, model_id, body.backtest, forced=body.force)
    before = None if done.before is None else done.before.reference
    verdict = None if done.verdict is None else dict(done.verdict)
    return PromotionView(id=done.new.reference, before=before, verdict=verdict)


def _promote(folder: Path | None, model_id: str, backtest: str | None, *, forced: bool) -> Promoted:
    """Raises HttpError NOT_FOUND, NOT_PROMOTED or READ_ONLY. Blocks."""
    if folder is None:
        raise HttpError(HttpCode.NOT_FOUND, NO_VERSION, "model_id")
    report = None if backtest is None else output_folder(folder, backtest)
    try:
        done = promote_checked(ModelRegistry(folder), model_id, report, forced=forced)
    except NotPromoted as refusal:
        details = {"verdict": None if refusal.verdict is None else dict(refusal.verdict)}
        message = f"{refusal}: {REMEDY}"
        raise HttpError(HttpCode.NOT_PROMOTED, message, "backtest", details) from None
    except DiskFull as error:
        raise HttpError(HttpCode.READ_ONLY, error.message) from None
    except KronosError as error:
        raise JobError.from_kronos(error) from None
    if done is None:
        raise HttpError(HttpCode.NOT_FOUND, NO_VERSION, "model_id")
    return done
