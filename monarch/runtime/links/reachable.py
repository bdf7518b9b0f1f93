"""The address at which the client listens for other machines, if it uses any."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from monarch.wire.host_url import HostUrl

if TYPE_CHECKING:
    from monarch.net.gateway import Gateway

_listen_url: HostUrl | None = None


def listen_at(url: HostUrl) -> None:
    """Set the URL at which this client listens, for hosts that must reach it over TCP."""
    global _listen_url
    _listen_url = url


def way_in(url: str, gateway: Gateway | None = None) -> tuple[str, str]:
    """Return (URL to listen at, URL to give to the machine at ``url``, so that it can connect).

    The second URL is "" if it is the first one. With a ``gateway``, the gateway listens and
    forwards to this process.
    """
    if gateway is not None:
        return _way_in_by(gateway, url)
    if _listen_url is not None and _listen_url.bind.startswith("tcp://"):
        return _listen_url.bind, _listen_url.advertise
    return f"tcp://{_address_towards(url)}:0", ""


def _way_in_by(gateway: Gateway, url: str) -> tuple[str, str]:
    from monarch.net.gate import adopt  # It needs ZeroMQ, which most clients do not.

    listener = socket.create_server(("127.0.0.1", 0))
    bind = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
    adopt(bind, listener.detach())
    return bind, gateway.listen(url, urlsplit(bind).port or 0)


def _address_towards(url: str) -> str:
    """Return the address of this machine that the machine at ``url`` can reach."""
    parts = urlsplit(url)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # Connecting a datagram socket sends nothing; it only picks the way out.
        probe.connect((parts.hostname or "localhost", parts.port or 9))
        address: str = probe.getsockname()[0]
    return address
