"""Where a host agent is: ``tcp://HOST:PORT``, ``ipc://PATH``, or an alias form of both."""

from __future__ import annotations

import hashlib
from typing import NamedTuple
from urllib.parse import urlsplit

from monarch.wire.address import ProcAddress


class HostUrl(NamedTuple):
    """Where a host agent is: clients connect to ``advertise``, the agent listens at ``bind``."""

    advertise: str
    bind: str

    @classmethod
    def parse(cls, text: str) -> HostUrl:
        """Parse ``URL``, or ``ADVERTISED_URL@BOUND_URL``. Raises ``ValueError`` for anything else.

        A process's name in front, as in ``NAME@URL``, is ignored.
        """
        advertise, at, bind = text.partition("@")
        if at and "://" not in advertise:
            advertise, at, bind = bind.partition("@")
        return cls(_check(advertise), _check(bind if at else advertise))

    @property
    def uid(self) -> str:
        """The agent's uid, which is computed from the URL, so that clients need not ask for it."""
        return "h" + hashlib.sha256(self.advertise.encode()).hexdigest()[:11]

    def address(self, here: str) -> ProcAddress:
        """Return the agent's address. A Unix socket can only be on this machine, whose id is
        ``here``."""
        machine = here if self.advertise.startswith("ipc://") else ""
        return ProcAddress(self.uid, (self.advertise,), machine)


def _check(url: str) -> str:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _refusal(url) from None
    if parts.scheme == "ipc" and url.removeprefix("ipc://"):
        return url
    if parts.scheme == "tcp" and parts.hostname == "*":
        raise NotImplementedError(
            f"{url}: bind to one interface, for example tcp://0.0.0.0:PORT, and give clients a "
            "name that they can reach: tcp://NAME:PORT@tcp://0.0.0.0:PORT"
        )
    if parts.scheme == "tcp" and parts.hostname and port is not None:
        return url
    raise _refusal(url)


def _refusal(url: str) -> ValueError:
    return ValueError(f"not an address of a host agent: {url!r}; use tcp://HOST:PORT or ipc://PATH")
