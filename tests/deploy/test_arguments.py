"""Every argument in the Terraform modules is one of the published schemas, which is all that this needs."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.deploy.modules import MODULES, TERRAFORM, parsed, resources, used_types
from tests.deploy.provider import schemas

META = {"__is_block__", "count", "for_each", "depends_on", "lifecycle", "provider"}


def problems(path: str, content: dict[str, Any], schema: dict[str, Any]) -> Iterator[str]:
    """What the provider would refuse of one block."""
    given = {key: value for key, value in content.items() if key not in META}
    blocks = {key: value for key, value in given.items() if is_block(value)}
    dynamic = {
        name: body
        for block in blocks.pop("dynamic", [])
        for name, body in block.items()
        if name != "__is_block__"
    }
    blocks |= {name: body["content"] for name, body in dynamic.items()}
    for name in given.keys() - blocks.keys() - {"dynamic"}:
        if schema["attributes"].get(name, "computed").endswith("computed"):
            yield f"{path}.{name} is no argument"
    for name, type_ in schema["attributes"].items():
        if type_.endswith("required") and name not in given:
            yield f"{path}.{name} is required"
    for name, inner in schema["blocks"].items():
        if inner.get("min") and name not in blocks:
            yield f"{path}.{name} is a required block"
        if len(blocks.get(name, [])) > inner.get("max", 99):
            yield f"{path}.{name} is given more than once"
    for name, bodies in blocks.items():
        if name not in schema["blocks"]:
            yield f"{path}.{name} is no block"
            continue
        for body in bodies:
            yield from problems(f"{path}.{name}", body, schema["blocks"][name])


def is_block(value: object) -> bool:
    return isinstance(value, list) and any(
        isinstance(item, dict) and "__is_block__" in item for item in value
    )


@pytest.mark.parametrize("module", MODULES)
def test_every_argument_is_one_of_the_providers_schema(module: str) -> None:
    published = schemas()
    found = [
        problem
        for type_, name, content in resources(module)
        for problem in problems(f"{type_}.{name}", content, published[type_])
    ]
    assert found == []


def test_a_misspelt_or_missing_argument_would_be_found() -> None:
    (name, content) = next(
        (name, content)
        for type_, name, content in resources("google")
        if type_ == "resource.google_compute_disk"
    )
    schema = schemas()["resource.google_compute_disk"]
    assert list(problems(name, {**content, "sizee": 1}, schema)) == ["redis.sizee is no argument"]
    assert list(problems(name, {key: content[key] for key in content if key != "name"}, schema)) == [
        "redis.name is required"
    ]


def test_the_committed_schemas_are_of_the_types_in_use() -> None:
    assert set(schemas()) == used_types()


@pytest.mark.parametrize("cloud", ["google", "aws"])
def test_every_variable_of_a_cloud_is_described_and_checked(cloud: str) -> None:
    own, of_both = (parsed(TERRAFORM / cloud / name) for name in ("variables.tf", "pool_variables.tf"))
    for block in own["variable"] + of_both["variable"]:
        ((name, body),) = ((key, value) for key, value in block.items() if key != "__is_block__")
        assert len(body.get("description", "")) > 10, name
        is_free = body["type"] == "bool" or name == "redis_machine_type"
        assert is_free or body.get("validation"), f"{name} takes any value"


def test_both_clouds_have_the_same_variables_of_pools() -> None:
    # Copies, not links: an archive or a checkout on Windows turns a link into a text file.
    google, aws = ((TERRAFORM / cloud / "pool_variables.tf").read_text() for cloud in ("google", "aws"))
    assert google == aws
