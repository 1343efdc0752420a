"""Under which names a server without a key may be asked.

A page of another site cannot read what a server says, but its owner can have the site's name lead to this machine, and then it can: the browser
takes both for the same site. It still sends that name as Host, and no page can give an address, or "localhost", as a name of its own.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from infinipot.server.errors import Refusal


@dataclass(frozen=True)
class Hosts:
    """listening: the address that was asked for. also: names that are allowed besides; "*" allows all."""

    listening: str = "127.0.0.1"
    also: Sequence[str] = ()

    def refusal(self, host: str | None) -> Refusal | None:
        """host: the request's, with or without a port; none comes from no browser."""
        if host is None or "*" in self.also or self._known(name_of(host)):
            return None
        message = (
            f"this server is not asked under the name {name_of(host)[:100]!r}: start it with --allowed-host and that name, or with --api-key"
        )
        return Refusal(421, message, code="host_not_allowed")

    def _known(self, name: str) -> bool:
        if name in ("localhost", name_of(self.listening), *map(name_of, self.also)):
            return True
        here, there = address_of(name_of(self.listening)), address_of(name)
        return there is not None and (there.is_loopback or (here is not None and here.is_unspecified))


def name_of(host: str) -> str:
    """Without the port and the brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return (host if host.count(":") > 1 else host.partition(":")[0]).lower().removesuffix(".")


def address_of(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
