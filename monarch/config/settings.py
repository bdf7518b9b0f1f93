"""The settings in force in this process, and how they are changed.

Every setting can also be given in the environment as ``MONARCH_<NAME>`` in capitals, which
child processes inherit.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from msgspec.structs import asdict, replace

from monarch.config.duration import parse_duration
from monarch.config.transport import BindSpec
from monarch.config.upstream import UPSTREAM, Encoding, check_type

_PLAIN = (bool, int, float, str)


class Settings(msgspec.Struct, frozen=True):
    """All settings and their defaults. Durations are seconds."""

    heartbeat_seconds: float = 1.0  # how often a process sends heartbeats to its peers
    # how long a peer on another machine may be silent before it counts as lost
    heartbeat_timeout_seconds: float = 10.0
    # how long attaching waits for a host agent to answer
    attach_timeout_seconds: float = 30.0
    # how long an actor's cleanup may take as it ends
    cleanup_timeout_seconds: float = 3.0
    # how long `stop()` waits for actors and procs before they are killed
    stop_timeout_seconds: float = 10.0
    # how long the end of a program waits for its procs to end
    exit_timeout_seconds: float = 1.0
    # how long unused procs stay without `stop()`; a fifth of it for five meshes or more; 0: always
    collect_dropped_seconds: float = 10.0
    # how long a failure may go unheard before it ends the program
    fault_patience_seconds: float = 5.0
    # how long a proc may be silent before it is told of as hanging; 0: never
    hang_timeout_seconds: float = 12.0
    # how long a host may be silent during a push
    host_answer_seconds: float = 15.0
    # how long a push waits for processes to take new code
    reload_timeout_seconds: float = 30.0
    # what a run does where new code fails: "auto", "hold", "rollback" or "end"
    on_edit_error: str = "auto"
    # how long a call that is held at `breakpoint()` waits for a person: "wait", "off", a number of
    # seconds, or "auto": for ever where the client has a terminal, else 600 s
    breakpoint: str = "auto"
    # which calls are held where an endpoint raises: "", "first" or "all"
    on_error: str = ""
    # the least time that ranks get for a step on new code before it counts as stuck
    edit_patience_seconds: float = 30.0
    # the link by which the dashboard opens a file in an editor; "" makes none
    editor_url: str = "vscode://file/{path}:{line}"
    # how many of the last lines of a dead proc's output its failure shows
    log_tail_lines: int = 20
    # bytes that the log of a proc may take, the oldest lines go first; 0: no log file
    log_file_bytes: int = 64 * 2**20
    # folder of log files; "": below the runtime folder
    log_dir: str = ""
    # whether the label of a printed line names the rank that printed it
    prefix_with_rank: bool = True
    # how long a thread may hold the GIL while others want it
    switch_interval_seconds: float = 0.0005
    # bytes of the largest message that is sent or taken
    max_message_bytes: int = 10 * 2**30
    # bytes that a TCP listener takes in one piece; more comes in chunks
    max_frame_bytes: int = 64 * 2**20
    # bytes of shared memory for large messages between processes of a machine
    shared_memory_bytes: int = 4 * 2**30
    # folder of sockets and state; "": one of this user, made when needed
    runtime_dir: str = ""
    # how many messages to one receiver may be sent and not yet taken
    flow_window_messages: int = 8192
    # bytes of messages to one receiver that may be sent and not yet taken
    flow_window_bytes: int = 64 * 2**20
    # how long a full window blocks a sender before messages go to disk
    flow_patience_seconds: float = 1.0
    # folder for messages that wait on disk; "": /var/tmp, or where temporary files are
    spill_dir: str = ""
    # from how many hosts on messages go along a tree of host agents
    tree_min_hosts: int = 16
    # how many hosts each host of that tree sends on to
    tree_degree: int = 16
    # bytes of a push, over all far hosts, from which hosts send it on to each other
    sync_relay_bytes: int = 8 * 2**20
    # how many hosts each host sends a push on to
    sync_relay_degree: int = 4
    # whether memory of processes on the same host is read by system calls
    rdma_same_host: bool = True
    # how many connections a process keeps to another one whose memory it reads over TCP
    rdma_tcp_streams: int = 4
    # whether memory that is read over TCP is encrypted on its way
    rdma_tcp_encrypted: bool = False
    # whether hosts import early what their procs were seen importing
    learn_imports: bool = True
    # how many of its last calls each process remembers, for `monarch query`; 0: none
    telemetry_events: int = 8192

    def with_environment(self) -> Settings:
        """Return these settings, changed by the ``MONARCH_<NAME>`` variables that are set."""
        values: dict[str, Any] = {}
        for name in self.__struct_fields__:
            text = os.environ.get(f"MONARCH_{name.upper()}")
            if text is not None:
                values[name] = _from_text(text, type(getattr(self, name)))
        return replace(self, **values)


def _from_text(text: str, kind: type) -> Any:
    if kind is bool:
        return text.strip().lower() not in ("", "0", "false", "no", "off")
    return kind(text)


_base = Settings().with_environment()
_current = _base
_runtime: dict[str, Any] = {}


def settings() -> Settings:
    """Return the settings in force."""
    return _current


def configure(**values: Any) -> None:
    """Change settings of this process and of procs that it spawns later.

    Names are Monarch's own, or upstream's. Our durations take seconds or a text like ``"1m 30s"``.
    Raises ``ValueError`` for an unknown name and ``TypeError`` for a wrong type; then nothing
    changes.
    """
    accepted = {name: _accept(name, value) for name, value in values.items()}
    changed = dict(_runtime)
    for name, value in accepted.items():
        # Our setting replaces a value that was given under upstream's name for it.
        for alias in (alias for alias, upstream in UPSTREAM.items() if upstream.ours == name):
            changed.pop(alias, None)
        changed.pop(name, None)
        changed[name] = value
    _use(changed)


def _use(runtime: dict[str, Any]) -> None:
    """Apply these values over the defaults and the environment.

    If two names set the same setting, the later one counts.
    """
    global _current, _runtime
    ours: dict[str, Any] = {}
    for name, value in runtime.items():
        if name not in UPSTREAM:
            ours[name] = value
        elif UPSTREAM[name].ours:
            ours[UPSTREAM[name].ours] = UPSTREAM[name].for_ours(value)
    _runtime = runtime
    _current = replace(_base, **ours)


def _accept(name: str, value: Any) -> Any:
    """Check and convert the value of a setting; return the value to store."""
    if name in UPSTREAM:
        return UPSTREAM[name].accept(name, value)
    kinds = {name: type(getattr(_base, name)) for name in _base.__struct_fields__}
    if name not in kinds:
        import difflib  # For mistakes only.

        near = difflib.get_close_matches(name, [*kinds, *UPSTREAM], 1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise ValueError(
            f"unknown setting {name!r}{hint} Known ones: {', '.join(sorted(kinds))}; and those of "
            "upstream"
        )
    if kinds[name] is float and isinstance(value, str):
        try:
            return parse_duration(value)
        except ValueError as error:
            raise TypeError(f"setting {name!r} takes float, not str: {error}") from None
    check_type(name, value, kinds[name])
    return value


@contextmanager
def configured(**values: Any) -> Iterator[dict[str, Any]]:
    """Apply ``configure`` for the length of a ``with`` block, which gets all settings in force."""
    outer = _runtime
    try:
        configure(**values)
        yield get_global_config()
    finally:
        _use(outer)


def get_global_config() -> dict[str, Any]:
    """Return all settings in force, ours and upstream's, as a new dictionary."""
    return {**{name: upstream_value(name) for name in UPSTREAM}, **asdict(_current)}


def upstream_value(name: str) -> Any:
    """Return the value in force of one of upstream's settings."""
    upstream = UPSTREAM[name]
    if name in _runtime:
        return _runtime[name]
    if upstream.ours in _runtime:
        return upstream.from_ours(_runtime[upstream.ours])
    return upstream.default


def get_runtime_config() -> dict[str, Any]:
    """Return the values set by ``configure``, without defaults and without the environment."""
    return dict(_runtime)


def clear_runtime_config() -> None:
    """Undo all that ``configure`` has set."""
    _use({})


def inherited_config() -> dict[str, Any]:
    """Return the settings that procs spawned from here get, as data for a message."""
    inherited: dict[str, Any] = {}
    for name, value in _runtime.items():
        if isinstance(value, Encoding):
            inherited[name] = value.value
        elif isinstance(value, BindSpec):
            inherited[name] = value.text
        elif type(value) in _PLAIN:
            inherited[name] = value
    inherited.pop("runtime_dir", None)  # Each machine has its own folder of sockets.
    return {**inherited, "breakpoint": _patience(), "on_error": _current.on_error}


_UNATTENDED_SECONDS = "600"


def _patience() -> str:
    """Return the ``breakpoint`` setting for spawned procs.

    "auto" is decided here, because only this process knows whether a person is present.
    """
    if os.environ.get("PYTHONBREAKPOINT") == "0":
        return "off"
    if _current.breakpoint != "auto":
        return _current.breakpoint
    is_attended = "ipykernel" in sys.modules or (sys.stdin is not None and sys.stdin.isatty())
    return "wait" if is_attended else _UNATTENDED_SECONDS


def inherit_config(values: dict[str, Any]) -> None:
    """Use the settings that our owner's ``inherited_config`` returned."""
    encodings = [name for name in values if name in UPSTREAM and UPSTREAM[name].kind is Encoding]
    configure(**{**values, **{name: Encoding(values[name]) for name in encodings}})


def runtime_dir() -> str:
    """Return a directory that only this user can enter, for Unix sockets. Make it if it is
    missing."""
    base = settings().runtime_dir or os.path.join(tempfile.gettempdir(), f"monarch-{os.getuid()}")
    os.makedirs(base, mode=0o700, exist_ok=True)
    status = os.lstat(base)
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(
            f"{base} must belong to you and be closed to others (mode 0700); remove it, or set "
            "MONARCH_RUNTIME_DIR to a directory of your own"
        )
    return base
