"""The ways by which processes reach each other, in upstream's terms.

Programs need not set it: processes of one machine use Unix sockets, and machines use encrypted TCP.
A URL says where this program listens for other machines.
"""

from __future__ import annotations

import threading

from monarch.config import BindSpec, ChannelTransport
from monarch.runtime import process
from monarch.runtime.links import reachable
from monarch.wire.host_url import HostUrl

_META_ONLY = (ChannelTransport.MetaTlsWithHostname, ChannelTransport.MetaTlsWithIpV6)

_enabled: BindSpec | None = None
_lock = threading.Lock()


def enable_transport(transport: ChannelTransport | str) -> None:
    """Set how other processes reach this program: a kind, its short name, or a URL. Call it first.

    Setting the same value again changes nothing. Raises ``RuntimeError`` for a different value, or
    once the program has used the runtime; ``ValueError`` if it is neither a kind nor a URL;
    ``NotImplementedError`` for kinds that only Meta has.
    """
    global _enabled
    wanted = BindSpec(transport)
    url = HostUrl.parse(wanted.spec) if isinstance(wanted.spec, str) else None
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
    if url is not None:
        reachable.listen_at(url)
