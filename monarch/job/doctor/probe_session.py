"""Starts a probe on a host, by a login, a host agent or here."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from monarch.job.doctor import probe
from monarch.job.kinds.login_session import PythonLogin, ScriptSession, new_mark
from monarch.runtime.node import Node
from monarch.runtime.programs.remote_program import RemoteProgram
from monarch.wire.address import ProcAddress

_FIRST_LINE = """
import sys
if sys.version_info < (3, 7):
    sys.stdout.write({mark!r} + '{{"python": [%d, %d, 0]}}\\n' % tuple(sys.version_info[:2]))
    sys.stdout.flush()
else:
    names = {{"__name__": "monarch_probe"}}
    exec(compile({text!r}, "probe", "exec"), names)
    names["main"]({mark!r})
"""


def probe_by_login(
    command: Sequence[str], python: str, *, words_seconds: float = 5.0
) -> ScriptSession:
    """Start a probe with ``command``, which logs in and runs a shell command; return its session.

    A login that has closed its output gets ``words_seconds`` to end. Raises ``JobError`` if
    ``command`` cannot be run.
    """
    return PythonLogin(command, python, _script, words_seconds=words_seconds)


def probe_here() -> ScriptSession:
    """Start a probe on this machine, with this Python."""
    return probe_by_login(["sh", "-c"], sys.executable)


def probe_by_agent(node: Node, host: ProcAddress) -> ScriptSession:
    """Start a probe that a host's agent runs."""
    mark = new_mark()
    program = RemoteProgram(node, host, lambda stream, data: None)
    session = ScriptSession(mark, program.write, lambda: program.ended.value.reason, program.leave)

    def take(stream: int, data: bytes) -> None:
        session.take(data)
        program.shown(stream, len(data))

    program.on_output = take
    program.ended.on_set(session.over)
    program.run([mark], script=Path(probe.__file__).read_bytes(), is_python=True)
    return session


def _script(mark: str) -> str:
    return _FIRST_LINE.format(mark=mark, text=Path(probe.__file__).read_text(encoding="utf-8"))
