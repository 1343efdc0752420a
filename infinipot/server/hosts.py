"""The host names under which a server without a key answers.

A page of another site cannot read this server's answers. But the site's owner can let the site's
name point to this machine (DNS rebinding): then the browser takes both for the same site. The
browser still sends that name as Host, and no site can have an address or "localhost" as its name.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass

from infinipot.server.errors import APIError


@dataclass(frozen=True)
class Hosts:
    """listening: the value of --host. also: further names; "*" allows all."""

    listening: str = "127.0.0.1"
    also: Sequence[str] = ()

    def error(self, host: str | None) -> APIError | None:
        """The error for a Host header, with or without a port. Every browser sends the header."""
        if host is None or "*" in self.also or self._known(name_of(host)):
            return None
        message = (
            f"this server is not asked under the name {name_of(host)[:100]!r}: "
            "start it with --allowed-host and that name, or with --api-key"
        )
        return APIError(421, message, code="host_not_allowed")

    def _known(self, name: str) -> bool:
        if name in ("localhost", name_of(self.listening), *map(name_of, self.also)):
            return True
        here = address_of(name_of(self.listening))
        there = address_of(name)
        return there is not None and (
            there.is_loopback or (here is not None and here.is_unspecified)
        )


PORT = re.compile(r"(.*?)(:\d*)?")


def name_of(host: str) -> str:
    """A host without port and brackets. What has another form is returned as it is."""
    name = host
    if host.startswith("[") or host.count(":") == 1:
        match = PORT.fullmatch(host)
        name = host if match is None else match[1]
    if name.startswith("[") and name.endswith("]"):
        name = name[1:-1]
    return name.lower().removesuffix(".")


def address_of(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
