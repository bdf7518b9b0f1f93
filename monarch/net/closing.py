"""How a transport ends: its connections here and now, what its loop watches on the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from monarch.net.loop import Loop
from monarch.net.transport import Connection

_LINGER_SECONDS = 0.5
_LOOP_SECONDS = 1.0


def close_all(
    loop: Loop, connections: Iterable[Connection], close_watched: Callable[[], None]
) -> bool:
    """Close all of a transport; messages already sent get half a second to leave.

    False where the loop is stuck: what it watches is open still, and must not be waited for.
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
