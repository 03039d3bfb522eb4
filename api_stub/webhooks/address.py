"""Addresses of webhooks: public ones, and those that the settings allow. Senders of jobs choose them."""

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from typing import Final
from urllib.parse import SplitResult, urlsplit

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.settings import SettingsError

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

MAX_CHARS: Final = 2000
GLOBAL_UNICAST: Final = ipaddress.ip_network("2000::/3")
"""All public addresses of IPv6. Many others contain an address of IPv4 that a gateway or kernel may call."""
NOT_GLOBAL: Final = [ipaddress.ip_network(text) for text in ("192.0.0.0/24", "192.88.99.0/24", "3fff::/20")]
"""Special networks of IANA's registries that some versions of Python take for public ones."""
PORTS: Final = {"http": 80, "https": 443}


class AddressRefused(Exception):
    """The address must not be called."""


def read_networks(text: str | None) -> list[Network]:
    """The networks in ``KRONOS_WEBHOOK_NETWORKS``. Raises SettingsError."""
    try:
        return [ipaddress.ip_network(part) for part in (text or "").replace(",", " ").split()]
    except ValueError as error:
        reason = f"{error}; write them like 10.0.0.0/8, separated by commas"
        raise SettingsError(f"KRONOS_WEBHOOK_NETWORKS cannot be used: {reason}") from None


def checked_url(url: object, allowed: Sequence[Network]) -> str:
    """The URL if it can be one of a webhook; names are resolved only when it is called. Raises JobError."""
    if not isinstance(url, str):
        raise JobError(ErrorCode.BAD_TYPE, "webhook: write a URL as text", "webhook")
    try:
        parts = split(url)
        check(ipaddress.ip_address(str(parts.hostname)), allowed)
    except AddressRefused as refused:
        raise JobError(ErrorCode.BAD_VALUE, f"webhook: {refused}", "webhook") from None
    except ValueError:  # a name
        pass
    return url


def split(url: str) -> SplitResult:
    """The parts of an http or https URL. Raises AddressRefused."""
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in PORTS and parts.hostname and parts.port != 0
    except ValueError:
        is_usable = False
    if not is_usable or len(url) > MAX_CHARS or not url.isascii() or not url.isprintable() or " " in url:
        raise AddressRefused(f"write an http or https URL of up to {MAX_CHARS} characters")
    if parts.username is not None or parts.password is not None:
        raise AddressRefused("the URL must not have a user or a password")
    return parts


async def resolve(parts: SplitResult, allowed: Sequence[Network]) -> str:
    """An IP address of the URL's host. All of its addresses must be allowed.

    The call must go to this address: a second look-up of the name may have another answer.

    Raises:
        AddressRefused: The host has an address that must not be called.
        OSError: The name has no address.
    """
    port = parts.port or PORTS[parts.scheme]
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(str(parts.hostname), port, type=socket.SOCK_STREAM)
    addresses = [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]
    for address in addresses:
        check(address, allowed)
    return str(addresses[0])


def check(address: Address, allowed: Sequence[Network]) -> None:
    """Raises AddressRefused for an address that is neither public nor in an allowed network."""
    real = getattr(address, "ipv4_mapped", None) or getattr(address, "sixtofour", None) or address
    if any(real in network for network in allowed):
        return
    is_special = any(real in network for network in NOT_GLOBAL)
    is_special |= real.version == 6 and real not in GLOBAL_UNICAST
    if is_special or not real.is_global or real.is_multicast:
        raise AddressRefused(
            f"{address} is not a public address: give another one, or allow its network in "
            "KRONOS_WEBHOOK_NETWORKS"
        )
