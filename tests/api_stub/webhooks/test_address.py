"""Which addresses a webhook may have."""

import asyncio
import ipaddress

import pytest

from api_stub.webhooks.address import AddressRefused, check, checked_url, read_networks, resolve, split
from kronos_client.contract.errors import JobError
from kronos_client.settings import SettingsError


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700:4700::1111", "::ffff:8.8.8.8", "2002:808:808::1"])
def test_public_addresses_may_be_called(address):
    check(ipaddress.ip_address(address), [])


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0",
        "255.255.255.255", "224.0.0.1", "::1", "::", "fe80::1", "fc00::1", "ff02::1", "::ffff:127.0.0.1",
        "2002:7f00:1::", "2002:a00:1::1", "64:ff9b::a00:1", "64:ff9b:1::a00:1", "64:ff9b:1:ffff::808:808",
        "::127.0.0.1", "::8.8.8.8", "::ffff:0:127.0.0.1", "::ffff:0:8.8.8.8", "fec0::1", "100::1", "2001::1",
        "2001:db8::1", "3fff::1", "5f00::1", "192.0.0.1", "192.88.99.1", "198.18.0.1", "240.0.0.1",
    ],
)  # fmt: skip
def test_other_addresses_are_refused_unless_their_network_is_allowed(address):
    with pytest.raises(AddressRefused, match="KRONOS_WEBHOOK_NETWORKS"):
        check(ipaddress.ip_address(address), [])
    with pytest.raises(AddressRefused):
        check(ipaddress.ip_address(address), read_networks("203.0.113.0/24"))
    check(ipaddress.ip_address(address), read_networks("0.0.0.0/0, ::/0"))


@pytest.mark.parametrize(
    "url",
    [
        "", "example.org", "ftp://example.org/", "file:///etc/passwd", "http://", "https:///path",
        "https://user@example.org/", "https://user:password@example.org/", "https://example.org:99999/",
        "https://example.org:0/", "https://[::1/", "https://example.org/a b", "https://example.org/\n",
        "https://ex\xe4mple.org/", "https://example.org/" + "a" * 2000, "http://127.0.0.1/", "http://[::1]:80/",
        "http://169.254.169.254/latest/meta-data", "http://[::127.0.0.1]/", "http://[::ffff:0:a00:1]/", 3, ["https://example.org/"],
    ],
)  # fmt: skip
def test_what_is_no_address_of_a_webhook_is_refused_at_once(url):
    with pytest.raises(JobError) as refused:
        checked_url(url, [])
    assert refused.value.field == "webhook"


@pytest.mark.parametrize(
    "url", ["https://example.org", "http://example.org:8080/hook?a=b", "https://8.8.8.8/"]
)
def test_an_address_is_kept_as_it_is(url):
    assert checked_url(url, []) == url


@pytest.mark.parametrize(
    "answers",
    [["127.0.0.1"], ["8.8.8.8", "10.0.0.1"], ["::1"], ["8.8.8.8", "fe80::1%eth0"], ["64:ff9b:1::a00:1"]],
)
def test_a_name_with_any_private_address_is_refused(answers, monkeypatch):
    async def run() -> str:
        async def getaddrinfo(host, port, **_):
            return [(None, None, None, "", (answer, port)) for answer in answers]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
        return await resolve(split("https://rebinding.example/"), [])

    with pytest.raises(AddressRefused):
        asyncio.run(run())


@pytest.mark.parametrize("text", ["10.0.0.1/8", "localhost", "10.0.0.0/33"])
def test_a_setting_that_is_no_network_is_refused(text):
    with pytest.raises(SettingsError, match="KRONOS_WEBHOOK_NETWORKS cannot be used"):
        read_networks(text)
