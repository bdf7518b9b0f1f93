"""How a transport is closed: its connections at once, its watched descriptors on the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from monarch.net.loop import Loop
from monarch.net.transport import Connection

_LINGER_SECONDS = 0.5
_LOOP_SECONDS = 1.0


def close_all(
    loop: Loop, connections: Iterable[Connection], close_watched: Callable[[], None]
) -> bool:
    """Close all connections and watched descriptors of a transport. Messages already sent get half
    a second to leave.

    Return False if the loop is stuck: the descriptors that it watches stay open, and the caller
    must not wait for them.
    """
    for connection in list(connections):
        connection.close(linger_seconds=_LINGER_SECONDS)
    try:
        loop.run_on_loop(close_watched, timeout=_LOOP_SECONDS)
    except TimeoutError:
        return False
    except RuntimeError:
        # The loop has ended, and watches nothing any more.
        close_watched()
    return True
