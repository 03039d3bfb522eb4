import ast
import json
from pathlib import Path

import pytest
from celery.backends.base import Backend

import kronos_model
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_model.checkpoints.source import WEIGHTS_NAME
from kronos_model.errors import (
    CandleError,
    CheckpointError,
    CheckpointMissing,
    CheckpointUnreachable,
    KronosError,
)
from worker.app import app

ROOT = Path(kronos_model.__file__).parent.parent


def test_every_code_is_its_own_name_and_says_what_to_do() -> None:
    for code in ErrorCode:
        assert code.value == code.name
        assert code.meaning.endswith(".")
        assert 10 < len(code.meaning) < 120


def test_every_error_class_of_the_model_has_a_wire_code() -> None:
    classes = [KronosError]
    for cls in classes:
        classes.extend(cls.__subclasses__())

    assert len(classes) > 10
    assert {cls.code for cls in classes} <= set(ErrorCode)


def literal_codes() -> dict[str, list[str]]:
    """Codes written as literals in the sources, each with where it stands.

    They are passed as ``code=``, assigned to ``code``, given to ``JobError`` or a ``_refuse``, or
    yielded first.
    """
    found: dict[str, list[str]] = {}
    for path in [*ROOT.glob("kronos_model/**/*.py"), *ROOT.glob("worker/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for value in _code_expressions(node):
                if isinstance(value, ast.Constant) and isinstance(value.value, str) and value.value.isupper():
                    found.setdefault(value.value, []).append(f"{path.relative_to(ROOT)}:{value.lineno}")
    return found


def _code_expressions(node: ast.AST) -> list[ast.expr]:
    match node:
        case ast.keyword(arg="code", value=value):
            return [value]
        case ast.Yield(value=ast.Tuple(elts=[value, *_])):
            return [value]
        case ast.Assign(targets=[ast.Name(id="code")], value=value):
            return [value]
        case ast.Call(func=ast.Name(id="_refuse" | "JobError"), args=arguments):
            return arguments
    return []


def test_every_code_in_the_sources_is_in_the_list() -> None:
    codes = literal_codes()

    assert {"NOT_FINITE", "HIGH_BELOW_LOW", "CANNOT_INFER_TIMESTAMPS", "PRED_LEN_TOO_LONG"} <= set(codes)
    assert {code: places for code, places in codes.items() if code not in set(ErrorCode)} == {}


def test_args_are_exactly_what_the_wire_carries() -> None:
    error = JobError(ErrorCode.BAD_TYPE, "close must be numbers", "series.0.close", {"row": 3})

    assert error.args == ("BAD_TYPE", "close must be numbers", "series.0.close", {"row": 3})
    assert type(error.args[0]) is str
    assert json.loads(json.dumps(error.args)) == list(error.args)
    assert (error.code, error.message, error.field, error.details) == error.args
    assert str(error) == "BAD_TYPE: close must be numbers"


@pytest.mark.parametrize(
    "error",
    [
        JobError(ErrorCode.CANCELLED, "as asked"),
        JobError(ErrorCode.BAD_VALUE, "…", "series.0.id", {"row": 1, "nested": [1, {"a": None}]}),
        JobError("A_CODE_OF_THE_FUTURE", "update the client"),
    ],
)
def test_celerys_json_backend_gives_the_same_error_back(error: JobError) -> None:
    backend = Backend(app=app, serializer="json")

    stored = json.loads(json.dumps(backend.prepare_exception(error, serializer="json")))
    again = backend.exception_to_python(stored)

    assert stored["exc_message"] == list(error.args)
    assert type(again) is JobError
    assert again.args == error.args


def test_errors_of_the_model_keep_code_field_and_row() -> None:
    error = JobError.from_kronos(
        CandleError("no", code="NOT_FINITE", field="close", details={"row": 4}), prefix="series.2."
    )
    assert error.args == ("NOT_FINITE", "no", "series.2.close", {"row": 4})

    assert JobError.from_kronos(CheckpointMissing("gone")).args == ("CHECKPOINT_MISSING", "gone", None, {})
    assert JobError.from_kronos(KronosError("x"), prefix="series.2.").field == "series.2"


@pytest.mark.parametrize("kind", [CheckpointError, CheckpointMissing, CheckpointUnreachable])
def test_an_error_that_goes_over_the_wire_has_none(kind: type[CheckpointError]) -> None:
    error = JobError.from_kronos(
        kind(f"/secret/place/{WEIGHTS_NAME} is damaged", details={"path": "/secret/place"}), prefix="model"
    )
    assert "secret" not in str(error.args)
    assert error.message == f"…/{WEIGHTS_NAME} is damaged"
    assert error.code == kind.code
