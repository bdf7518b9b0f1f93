"""One-sided memory: what cannot be done without the owner's process is asked of it."""

from __future__ import annotations

from typing import Any

from monarch.wire.address import ProcAddress
from monarch.wire.message.header import Message


class AskMemory(Message, tag=90):
    """To the process that has registered memory: ``what`` is to be done, as ``about`` says.

    Answered by ``Answer``. It comes over the job's own connections, which strangers cannot use.
    """

    what: str
    about: dict[str, Any]
    port: int
    sender: ProcAddress
