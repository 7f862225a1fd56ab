"""Addresses that a request may be sent to on somebody's behalf: none on the inside, unless operators say so."""

import ipaddress
import socket

from django.conf import settings


class InsideAddressError(OSError):
    """It leads to this machine, a private network or another place that is not on the internet."""

    def __init__(self, host: str) -> None:
        super().__init__(f"{host} is an internal address; operators may allow these (HEADRACE_WEBHOOK_INTERNAL=1)")


def outside_addresses(host: str, port: int) -> list[str]:
    """Returns the addresses of a host, after looking its name up.

    Raises:
        InsideAddressError: One of them is not on the internet, and these are not allowed.
        OSError: The name is unknown.
    """
    found = [str(row[4][0]) for row in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    if not settings.HEADRACE_WEBHOOK_INTERNAL and not all(_is_outside(address) for address in found):
        raise InsideAddressError(host)
    return found


def _is_outside(text: str) -> bool:
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1]
        if inner is not None:
            return _is_outside(str(inner))
    return address.is_global and not address.is_multicast
