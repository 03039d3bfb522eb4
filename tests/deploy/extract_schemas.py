"""Writes schemas.json: what the providers publish of the resources that deploy/terraform uses.

    npm pack @cdktf/provider-google@16.12.1 @cdktf/provider-aws@21.22.1 \
        @cdktf/provider-tls@11.0.1 @cdktf/provider-random@12.0.1
    for file in cdktf-provider-*.tgz; do mkdir "$file.d" && tar xzf "$file" -C "$file.d"; done
    python -m tests.deploy.extract_schemas cdktf-provider-*.d

These packages are bindings that HashiCorp generated from the providers' own schemas. An attribute is a type
and one of "required", "optional" or "computed"; an optional one may also be computed.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from tests.deploy.modules import used_types
from tests.deploy.provider import SCHEMAS

ATTRIBUTES = re.compile(
    r'^ {12}(\w+): \{\s*value: (.*?),\s*isBlock: (\w+),\s*type: "(\w+)",\s*storageClassType: "(\w+)"',
    re.MULTILINE | re.DOTALL,
)
MAPPER = re.compile(r"(\w+)ToHclTerraform\b")
SIMPLE = {"string": "string", "number": "number", "boolean": "bool"}


def camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in others)


class Binding:
    """One resource's generated code."""

    def __init__(self, folder: Path) -> None:
        self.code = "\n".join(path.read_text() for path in folder.rglob("*.js"))
        self.types = "\n".join(path.read_text() for path in folder.rglob("*.d.ts"))

    def resource(self) -> dict[str, Any]:
        name = re.search(r"declare class (\w+) extends cdktf\.Terraform(?:Resource|DataSource)", self.types)
        assert name is not None
        return self._block(self.code.rsplit("synthesizeHclAttributes() {", 1)[1], name[1])

    def _struct(self, name: str) -> dict[str, Any]:
        body = re.search(rf"function {name}ToHclTerraform\(struct\) \{{(.*?)^\}}", self.code, re.M | re.S)
        assert body is not None, name
        return self._block(
            re.sub(r"^ {8}", " " * 12, body[1], flags=re.M), f"{name[0].upper()}{name[1:]}OutputReference"
        )

    def _block(self, code: str, class_name: str) -> dict[str, Any]:
        declared = re.search(rf"class {class_name} extends .*?^}}", self.types, re.M | re.S)
        assert declared is not None, class_name
        attributes: dict[str, str] = {}
        blocks: dict[str, Any] = {}
        code = code.split("};", 1)[0]
        for name, value, is_block, kind, storage in ATTRIBUTES.findall(code):
            getter = re.search(rf"get {camel(name)}\(\): ([\w.\[\]{{}}: ]+);", declared[0])
            # The few that the generator renames (such as self) have neither, and none of them is required.
            is_optional = getter is None or f"reset{camel(name)[0].upper()}{camel(name)[1:]}()" in declared[0]
            if is_block == "false":
                element = storage.removesuffix("List").removesuffix("Map")
                plain = SIMPLE.get(element, "dynamic")
                attributes[name] = (plain if kind == "simple" else f"{kind}({plain})") + (
                    " optional" if is_optional else " required"
                )
            elif name != "timeouts":
                mapper = MAPPER.findall(value)
                assert getter is not None, (class_name, name)
                blocks[name] = {
                    "nesting": kind if kind in ("list", "set") else "list",
                    **({"max": 1} if getter[1].endswith("OutputReference") else {}),
                    **({} if is_optional else {"min": 1}),
                    **self._struct(mapper[-1]),
                }
        for name, type_ in re.findall(r"get (\w+)\(\): ([\w.]+(?:\[\])?);", declared[0]):
            snake = re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()
            known = {camel(given) for given in (*attributes, *blocks)} | {"internalValue", "resolvableValue"}
            if name not in known and not name.endswith("Input"):
                plain = {"string": "string", "number": "number", "cdktf.IResolvable": "bool"}.get(type_)
                if plain or type_ == "string[]":
                    attributes[snake] = f"{plain or 'list(string)'} computed"
        return {"attributes": attributes, "blocks": blocks}


def main(folders: list[str]) -> None:
    schemas: dict[str, dict[str, Any]] = {}
    for type_ in sorted(used_types()):
        kind, name = type_.split(".")
        provider, _, rest = name.partition("_")
        for folder in folders:
            path = (
                Path(folder)
                / "package"
                / "lib"
                / f"{'data-' + provider + '-' if kind == 'data' else ''}{rest}".replace("_", "-")
            )
            is_provider = f"provider-{provider}" in (Path(folder) / "package/package.json").read_text()
            if is_provider and path.is_dir():
                schemas[type_] = Binding(path).resource()
        assert type_ in schemas, f"{type_} is in none of the packages"
    lines = (
        f" {json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in schemas.items()
    )
    SCHEMAS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
