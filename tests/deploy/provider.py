"""Stand-ins for Terraform's providers: they have the real ones' schemas, and accept every value.

Terraform checks modules against the schemas: names, types, what is required. Tests of modules
(``*.tftest.hcl``) mock the rest. The messages of its plugin protocol 6 are written by hand, as they are few:
https://github.com/hashicorp/terraform/blob/v1.11.4/docs/plugin-protocol/tfplugin6.8.proto
"""

import json
import os
from collections.abc import Iterator
from concurrent import futures
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import grpc

SCHEMAS: Final = Path(__file__).resolve().parents[1] / "data" / "terraform" / "schemas.json"
SENSITIVE: Final = ("private_key_pem", "result")  # of tls_private_key and random_password
NESTING: Final = {"list": 2, "set": 3}


def schemas() -> dict[str, Any]:
    """The schema of each ``resource.TYPE`` and ``data.TYPE``, as extract_schemas.py writes them."""
    content: dict[str, Any] = json.loads(SCHEMAS.read_text())
    return content


def field(number: int, value: bytes | str | int) -> bytes:
    """One protobuf field."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    content = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value % 128 | 128]) + varint(value >> 7)


def attribute(name: str, given: str, is_top: bool) -> bytes:
    type_, presence = given.split()
    element = type_.rstrip(")").split("(")
    flags = {
        "required": field(4, 1),
        "optional": field(5, 1) + (field(6, 1) if is_top else b""),
        "computed": field(6, 1),
    }
    secret = field(7, 1) if name in SENSITIVE else b""
    return (
        field(1, name)
        + field(2, json.dumps(element if len(element) > 1 else type_))
        + flags[presence]
        + secret
    )


def block(schema: dict[str, Any], is_top: bool = True) -> bytes:
    attributes = (field(2, attribute(name, given, is_top)) for name, given in schema["attributes"].items())
    nested = (
        field(1, name)
        + field(2, block(inner, is_top=False))
        + field(3, NESTING[inner["nesting"]])
        + field(4, inner.get("min", 0))
        + field(5, inner.get("max", 0))
        for name, inner in schema["blocks"].items()
    )
    return b"".join((*attributes, *(field(3, inner) for inner in nested)))


def provider_schema(name: str) -> bytes:
    """Everything that the provider offers, and of its own settings those that the modules use."""
    tags = {"nesting": "list", "max": 1, "attributes": {"tags": "map(string) optional"}, "blocks": {}}
    settings = dict.fromkeys(("project", "region", "zone"), "string optional")
    settings["default_labels"] = "map(string) optional"
    top = {"attributes": settings, "blocks": {"default_tags": tags}}
    message = field(1, field(2, block(top, is_top=False)))
    for key, schema in schemas().items():
        kind, type_ = key.split(".")
        if type_.startswith(f"{name}_"):
            entry = field(1, type_) + field(2, field(2, block(schema)))
            message += field(2 if kind == "resource" else 3, entry)
    return message


class Plugin(grpc.GenericRpcHandler):
    """Answers with the schema, and every other method with an empty message."""

    def __init__(self, name: str) -> None:
        self._schema = provider_schema(name)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        service, method = handler_call_details.method.strip("/").split("/")
        if service != "tfplugin6.Provider":
            return None
        answer = self._schema if method == "GetProviderSchema" else b""
        return grpc.unary_unary_rpc_method_handler(lambda request, context: answer)


@contextmanager
def providers(*names: str) -> Iterator[str]:
    """Serve the providers in this process, for TF_REATTACH_PROVIDERS."""
    attached = {}
    with ExitStack() as stack:
        for name in names:
            server = grpc.server(futures.ThreadPoolExecutor(2))
            stack.callback(lambda server=server: server.stop(grace=None).wait())
            server.add_generic_rpc_handlers((Plugin(name),))
            address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
            server.start()
            attached[f"registry.terraform.io/hashicorp/{name}"] = {
                "Protocol": "grpc",
                "ProtocolVersion": 6,
                "Pid": os.getpid(),
                "Test": True,  # Terraform does not end it
                "Addr": {"Network": "tcp", "String": address},
            }
        yield json.dumps(attached)
