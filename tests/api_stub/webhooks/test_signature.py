"""Signatures that every library of Standard Webhooks verifies."""

import pytest
from pydantic import SecretStr

from api_stub.webhooks.sender import read_secret, signed_headers
from kronos_client.settings import SettingsError


def test_the_example_of_the_specification_has_its_signature():
    secret = read_secret(SecretStr("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"))
    assert secret is not None
    body = b'{"test": 2432232314}'
    headers = signed_headers(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


@pytest.mark.parametrize("text", ["short", "whsec_", "ä" * 40, "c2hvcnQ=", "!" * 40])
def test_a_weak_or_unreadable_secret_is_refused(text):
    with pytest.raises(SettingsError, match="KRONOS_WEBHOOK_SECRET cannot be used") as refused:
        read_secret(SecretStr(text))
    assert text not in str(refused.value) or text == "whsec_"
