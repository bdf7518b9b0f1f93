"""Notices that a host is about to end, as its scheduler has announced."""

from __future__ import annotations

import functools
import json
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from monarch.wire.bulletin import Bulletin

if TYPE_CHECKING:
    # The process that makes notices is small, and has no agent in it.
    from monarch.runtime.hosts.host_agent import HostAgent

ENDING = "ending"  # the kind of its bulletin
_DEFAULT_GRACE_SECONDS = 30.0
_LOOK_SECONDS = 0.1
_MARGIN_SECONDS = 1.0
_MARGIN_SHARE = 0.2
_HEARD_SECONDS = 10.0


class EndNotice(NamedTuple):
    """The announced end of a host. ``why``: the reason. ``seconds``: how long it still has; None if
    that is not known.

    ``is_last``: no further notice follows. The host then ends when nothing runs on it and its
    listeners have heard of its end, or when its time is up.
    """

    why: str
    seconds: float | None = None
    is_last: bool = False


def grace_seconds() -> float:
    """Return the seconds that a host goes on after its end was announced, if the scheduler does not
    say."""
    return float(os.environ.get("MONARCH_GRACE_SECONDS") or _DEFAULT_GRACE_SECONDS)


def obey_notices(
    fd: int,
    agent: HostAgent,
    over: Callable[[], object],
    heard_seconds: float = _HEARD_SECONDS,
) -> None:
    """Read notices from the pipe ``fd`` on a thread, and publish them to the listeners of a host.

    ``over`` is called when the host must end, or when the other end of the pipe is closed. A
    listener that hangs, or has gone, delays the end of an idle host by ``heard_seconds``.
    """

    def read() -> None:
        with os.fdopen(fd) as lines:
            for line in lines:
                if line == "end\n":
                    break
                notice = EndNotice(**json.loads(line))
                agent.node.loop.call_soon(functools.partial(_tell, agent, notice))
                if notice.is_last:
                    end = functools.partial(_end_in_time, agent, notice, over, heard_seconds)
                    agent.node.loop.call_soon(end)
        over()

    threading.Thread(target=read, name="monarch-notices", daemon=True).start()


def _tell(agent: HostAgent, notice: EndNotice) -> None:
    when = "soon" if notice.seconds is None else f"in {notice.seconds:.0f} s"
    text = f"{agent.name} ends {when}: {notice.why}"
    data = {"host": agent.name, "why": notice.why, "seconds": notice.seconds}
    agent.publish(Bulletin(f"host {agent.name}", ENDING, text, stands=True, data=data))


def _end_in_time(
    agent: HostAgent, notice: EndNotice, over: Callable[[], object], heard_seconds: float
) -> None:
    seconds = notice.seconds or 0.0
    now = agent.node.loop.time()
    until = now + seconds - max(_MARGIN_SECONDS, _MARGIN_SHARE * seconds)
    heard_until = now + heard_seconds

    def look() -> None:
        now = agent.node.loop.time()
        is_told = agent.bulletins.is_heard or now >= heard_until
        if now >= until or (not agent.procs and is_told):
            over()
            return
        agent.node.loop.call_later(_LOOK_SECONDS, look)

    look()
