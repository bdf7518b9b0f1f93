"""Kinds of transport, and where to listen, in upstream's words."""

from __future__ import annotations

import enum
import re


class ChannelTransport(enum.Enum):
    """The kinds of transport that upstream names."""

    TcpWithLocalhost = "tcp-localhost"
    TcpWithHostname = "tcp"
    MetaTlsWithHostname = "metatls-hostname"
    MetaTlsWithIpV6 = "metatls"
    Tls = "tls"
    Local = "local"
    Unix = "ipc"


_URL = re.compile(r"(tcp|ipc|inproc|unix|metatls|tls|local)://.+|[^@]+@(tcp|ipc)://.+")


class BindSpec:
    """A kind of transport, given directly or by its short name, or the URL to listen at.

    Raises ``ValueError`` for any other text.
    """

    spec: ChannelTransport | str

    def __init__(self, spec: ChannelTransport | str) -> None:
        kinds = {kind.value: kind for kind in ChannelTransport} | {"unix": ChannelTransport.Unix}
        self.spec = kinds.get(spec, spec) if isinstance(spec, str) else spec
        if isinstance(self.spec, str) and not _URL.fullmatch(self.spec):
            raise ValueError(
                f"{spec!r} is neither a kind of transport nor an address to listen at: one is "
                "not an address without its scheme, as in tcp://HOST:PORT"
            )

    @property
    def text(self) -> str:
        """The text from which an equal spec can be made: the short name, or the URL."""
        return self.spec if isinstance(self.spec, str) else self.spec.value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BindSpec):
            return NotImplemented
        return self.spec == other.spec

    def __hash__(self) -> int:
        return hash(self.spec)

    def __repr__(self) -> str:
        return f"BindSpec({self.spec if isinstance(self.spec, str) else self.spec.name})"
