"""Whoever sent a job learns what is wrong, and no path of the worker's machine."""

import pytest

from kronos_client.contract.errors import JobError
from kronos_client.contract.paths import without_paths
from kronos_model.checkpoints.hub import WEIGHTS_NAME
from kronos_model.errors import CheckpointError, CheckpointMissing, CheckpointUnreachable


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The folder '/srv/my models/x' has no config.json.", "The folder '…/x' has no config.json."),
        ('"/srv/models/x/" is damaged', '"…/x" is damaged'),
        ("/srv/x/config.json cannot be read as JSON: line 1", "…/config.json cannot be read as JSON: line 1"),
        (
            "[Errno 28] No space left: '/srv/cache/ab.incomplete'",
            "[Errno 28] No space left: '…/ab.incomplete'",
        ),
        ("it lies in /srv/models/x.", "it lies in …/x."),
        ("(/srv/models/x, /srv/models/y)", "(…/x, …/y)"),
        ("fetched from https://hub.example.com/a/b (Timeout)", None),
        ("'NeoQuasar/Kronos-small' is gated", None),
        ("model/model.safetensors of the registered model a@1", None),
        ("open and/or close; 3 / 4; +/-5", None),
        ("'/' is a folder", None),
        ("", None),
    ],
)
def test_only_the_last_name_of_an_absolute_path_is_left(text: str, expected: str | None) -> None:
    assert without_paths(text) == (text if expected is None else expected)


def test_details_are_looked_through() -> None:
    details = {"model": {"id": "'/srv/a'"}, "missing": ["/srv/b", 3, None], "/srv/c": True}
    assert without_paths(details) == {"model": {"id": "'…/a'"}, "missing": ["…/b", 3, None], "…/c": True}


@pytest.mark.parametrize("kind", [CheckpointError, CheckpointMissing, CheckpointUnreachable])
def test_an_error_that_goes_over_the_wire_has_none(kind: type[CheckpointError]) -> None:
    error = JobError.from_kronos(
        kind(f"/secret/place/{WEIGHTS_NAME} is damaged", details={"path": "/secret/place"}), prefix="model"
    )
    assert "secret" not in str(error.args)
    assert error.message == f"…/{WEIGHTS_NAME} is damaged"
    assert error.code == kind.code
