"""How processes reach each other, for programs that say so in upstream's words.

Nothing need be said: processes of one machine speak over Unix sockets, others over encrypted
TCP, whichever both ends have. An explicit URL says where this program listens for other machines.
"""

from __future__ import annotations

import enum
import threading

from monarch.runtime import client_agent, process
from monarch.wire.host_url import HostUrl

__all__ = ["BindSpec", "ChannelTransport", "enable_transport"]


class ChannelTransport(enum.Enum):
    """The kinds of transport that upstream names."""

    TcpWithLocalhost = "tcp-localhost"
    TcpWithHostname = "tcp"
    MetaTlsWithHostname = "metatls-hostname"
    MetaTlsWithIpV6 = "metatls"
    Tls = "tls"
    Local = "local"
    Unix = "ipc"


_META_ONLY = (ChannelTransport.MetaTlsWithHostname, ChannelTransport.MetaTlsWithIpV6)


class BindSpec:
    """A kind of transport, or the URL to listen at."""

    def __init__(self, spec: ChannelTransport | str) -> None:
        if isinstance(spec, str):
            HostUrl.parse(spec)
        self.spec = spec

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BindSpec):
            return NotImplemented
        return self.spec == other.spec

    def __hash__(self) -> int:
        return hash(self.spec)

    def __repr__(self) -> str:
        return f"BindSpec({self.spec if isinstance(self.spec, str) else self.spec.name})"


_enabled: BindSpec | None = None
_lock = threading.Lock()


def enable_transport(transport: ChannelTransport | str) -> None:
    """Say before anything else how this program is reached: a kind, its short name, or a URL.

    The same again changes nothing. Raises ``RuntimeError`` for another one, or once the program
    has used the runtime, ``ValueError`` for what is neither a kind nor a URL, and
    ``NotImplementedError`` for those that only Meta has.
    """
    global _enabled
    kinds = {kind.value: kind for kind in ChannelTransport}
    wanted = BindSpec(kinds.get(transport, transport) if isinstance(transport, str) else transport)
    if wanted.spec in _META_ONLY:
        raise NotImplementedError(f"{wanted} exists only inside Meta; use 'tcp'")
    with _lock:
        if _enabled == wanted:
            return
        if process.is_bootstrapped():
            raise RuntimeError(
                "`enable_transport()` must be called before any other calls in the monarch API: "
                "this program has spoken to others already"
            )
        if _enabled is not None:
            raise RuntimeError(
                "Only one transport type may be enabled at one time. Currently enabled transport "
                f"type is `{_enabled}`. Attempted to enable transport type `{wanted}`."
            )
        _enabled = wanted
    if isinstance(wanted.spec, str):
        client_agent.listen_at(HostUrl.parse(wanted.spec))
