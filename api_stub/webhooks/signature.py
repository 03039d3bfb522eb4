"""Signatures of webhooks, as the Standard Webhooks specification has them (standardwebhooks.com)."""

import base64
import hashlib
import hmac
from typing import Final

from pydantic import SecretStr

from kronos_client.settings import SettingsError

PREFIX: Final = "whsec_"
MIN_BYTES: Final = 24


def read_secret(setting: SecretStr | None) -> bytes | None:
    """The key in ``KRONOS_WEBHOOK_SECRET``; None if it is not set. Raises SettingsError."""
    if setting is None:
        return None
    try:
        secret = base64.b64decode(setting.get_secret_value().removeprefix(PREFIX), validate=True)
    except ValueError:
        secret = b""
    if len(secret) < MIN_BYTES:
        raise SettingsError(
            f"KRONOS_WEBHOOK_SECRET cannot be used: it must be {MIN_BYTES} or more bytes in base64, with or "
            f"without {PREFIX} before it. `openssl rand -base64 32` makes one"
        )
    return secret


def signed_headers(secret: bytes, message_id: str, timestamp_s: int, body: bytes) -> dict[str, str]:
    """The headers from which a receiver checks who sent the body, and when."""
    signed = f"{message_id}.{timestamp_s}.".encode() + body
    digest = base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode()
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp_s),
        "webhook-signature": f"v1,{digest}",
    }
