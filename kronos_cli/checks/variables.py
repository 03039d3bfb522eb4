"""Checks of the environment for variables that look like settings but are not."""

import os
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Final

from kronos_cli.checks.finding import Finding
from kronos_cli.settings import CliSettings
from kronos_client.settings import PREFIX

API_ONLY: Final = (
    "api_keys",
    "api_wait_s",
    "api_body_timeout_s",
    "api_body_bytes_per_s",
    "api_requests_per_minute",
    "api_max_body_bytes",
    "api_max_upload_bytes",
    "api_cors_origins",
    "webhook_secret",
    "webhook_networks",
)
"""Settings of the HTTP API, which this package does not import."""


def known_names() -> set[str]:
    """The names of all settings without ``KRONOS_``."""
    names = {name.upper() for name in (*CliSettings.model_fields, *API_ONLY)}
    return names | {f"{name}_FILE" for name in names}


def variable_findings() -> Iterator[Finding]:
    """A warning for each variable that begins with ``KRONOS_`` and is not a setting."""
    known = known_names()
    for variable in sorted(os.environ):
        name = variable.removeprefix(PREFIX)
        if name != variable and name not in known:
            near = get_close_matches(name, known, n=1)
            remedy = f"write {PREFIX}{near[0]}, or unset it" if near else "unset it"
            yield Finding("settings", "warning", f"{variable} is set but is not a setting", remedy)
