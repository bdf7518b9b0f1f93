"""The task that a scheduler starts on a machine: it keeps a host agent running, and warns it before
its end.

The scheduler's signals come to this small process. It turns an announced end into a warning to the
users of the host; the agent continues until then.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import time
from collections.abc import Callable

from monarch.runtime.ends.process_group import die_with_parent
from monarch.runtime.hosts.end_notice import EndNotice
from monarch.runtime.links.secret import take_secret

_log = logging.getLogger("monarch.host")
_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
_HEALTHY_SECONDS = 60.0
_FIRST_WAIT_SECONDS = 0.5
_LONGEST_WAIT_SECONDS = 30.0

Meaning = Callable[[int], "EndNotice | None"]


def keep_host(address: str, name: str, meaning: Meaning, *, again: bool) -> int:
    """Keep a host agent at ``address``; return its exit status.

    ``meaning`` returns the end that a signal announces, or ``None`` for an immediate end.
    ``again``: an agent that dies is restarted at the same address, with growing pauses.
    """
    # Taken out of the environment here, so that each agent inherits the kept value.
    take_secret()
    # Signals go through a pipe, which keeps those that come while another is handled.
    signals_out, signals_in = os.pipe()
    os.set_blocking(signals_in, False)
    signal.set_wakeup_fd(signals_in)
    for number in (*_SIGNALS, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    wait_seconds = _FIRST_WAIT_SECONDS
    while True:
        began = time.monotonic()
        pid, notices = _start(address, name, (signals_out, signals_in))
        status, is_over = _watch(pid, signals_out, notices, meaning)
        os.close(notices)
        if is_over or status == 0 or not again:
            return status
        if time.monotonic() - began > _HEALTHY_SECONDS:
            wait_seconds = _FIRST_WAIT_SECONDS
        _log.warning(
            "the host agent %s has ended (%d): it is started again in %.1f s",
            name,
            status,
            wait_seconds,
        )
        time.sleep(wait_seconds)
        wait_seconds = min(2 * wait_seconds, _LONGEST_WAIT_SECONDS)


def _start(address: str, name: str, ours: tuple[int, ...]) -> tuple[int, int]:
    """Fork a host agent; return its pid, and the descriptor to write notices for it to.

    The agent closes the descriptors ``ours``, which it inherits.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(reader)
        return pid, writer
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        for fd in (*ours, writer):
            os.close(fd)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # A scheduler may signal all processes of a task. Procs inherit that it is ignored.
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        die_with_parent()
        # Imported in the agent alone: this process stays small.
        from monarch.runtime.entry.host_main import serve_host

        serve_host(address, name, notices=reader)
        status = 0
    except KeyboardInterrupt:
        pass
    except BaseException:
        logging.getLogger("monarch.host").exception("the host agent failed")
    finally:
        os._exit(status)


def _watch(pid: int, heard: int, notices: int, meaning: Meaning) -> tuple[int, bool]:
    """Wait until the agent ``pid`` has ended; return its status, and whether SIGTERM has come.

    ``heard`` is read for the signals that arrive. What ``meaning`` makes of them is written to
    ``notices``.
    """
    is_over = False
    while True:
        for number in os.read(heard, 64):
            if number not in _SIGNALS:
                continue
            notice = meaning(number)
            is_over = is_over or number == signal.SIGTERM
            with contextlib.suppress(OSError):  # It has ended.
                if notice is not None:
                    os.write(notices, f"{json.dumps(notice._asdict())}\n".encode())
                elif number == signal.SIGTERM:
                    os.write(notices, b"end\n")
        # Reap all children: as the first process of a container it inherits orphans.
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == pid:
                    return os.waitstatus_to_exitcode(ended[1]), is_over
