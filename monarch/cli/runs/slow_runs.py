"""``monarch runs hold`` and ``wait``: send a person's answer to a run whose step takes long."""

from __future__ import annotations

from monarch.cli.sync.pusher import pusher_here
from monarch.cli.terminal.volume import say
from monarch.runs.record.slowness import ASKED, HOLD, KEYS
from monarch.wire.bulletin import Bulletin

_SAID = {HOLD: "is held, and waits for a save"}


def ask_slow_runs(key: str) -> None:
    """Send the key's command to the runs of this folder's allocation whose step takes long. Raises
    ``JobError`` without an allocation, or if none of its hosts answers.
    """
    pusher, command = pusher_here(), KEYS[key]
    pusher.post(Bulletin(ASKED, command))
    pusher.inspect()  # Whoever has answered this has the bulletin.
    say(f"asked: a run whose step on new code takes long {_SAID.get(command, 'has more time')}")
