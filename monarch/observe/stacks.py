"""Stacks of many ranks: from each rank itself, or from py-spy if the rank cannot answer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from monarch.core.grouping import group
from monarch.runtime.answers import Response
from monarch.wire.message import Body


class ProcStacks(NamedTuple):
    """A proc's answer to `wire.message.StacksAsked`, or an ``error``."""

    uid: str
    mesh: str
    rank: int
    pid: int
    answer: Mapping[str, Any]
    error: str = ""

    @classmethod
    def of(cls, uid: str, mesh: str, rank: int, pid: int, response: Response[Body]) -> ProcStacks:
        return cls(uid, mesh, rank, pid, response.or_else({}), response.error)


def stacks_in_words(procs: Iterable[ProcStacks]) -> list[str]:
    """Return the stacks of all busy actors and of other threads as lines; equal stacks are shown
    once."""
    stacks: dict[str, dict[int, str]] = {}
    lines = []
    for proc in procs:
        answer = proc.answer
        if proc.error:
            lines.append(
                f"{proc.mesh} {proc.rank} (pid {proc.pid}) {proc.error}: it is stopped, or a "
                "thread holds the GIL; `monarch stacks --native` may show where"
            )
        for actor in answer.get("actors", ()):
            head = f"{actor['name']} in {actor['method']}" if actor["method"] else actor["name"]
            text = _frames(actor["frames"])
            if held_at := actor.get("held_at"):
                text = "\n".join(filter(None, [text, f"    HELD at {held_at}"]))
            text = text or "    idle"
            stacks.setdefault(head, {})[actor["rank"]] = text
        for thread in answer.get("threads", ()):
            if not any(frame["is_users"] for frame in thread["frames"]):
                continue
            if thread["name"].startswith("actor ") or thread["name"] == "MainThread":
                continue
            key = f"thread {thread['name']} of {proc.mesh}"
            stacks.setdefault(key, {})[proc.rank] = _frames(thread["frames"])
    for head, by_rank in stacks.items():
        for ranks in group(by_rank):
            lines += [f"{head}, {ranks.who}", *ranks.answer.splitlines(), ""]
    return lines


def _frames(frames: Sequence[Mapping[str, Any]]) -> str:
    lines = []
    for frame in frames:
        if frame["file"].endswith(("/bdb.py", "/pdb.py")):
            break  # From here on it is the debugger that holds the call.
        lines.append(f"    {frame['file']}:{frame['line']} in {frame['function']}")
        if frame["text"]:
            lines.append(f"        {frame['text']}")
        for name, value in frame.get("locals", {}).items():
            lines.append(f"          {name} = {value}")
    return "\n".join(lines)


def dump_in_words(text: str) -> list[str]:
    """Return a dump of py-spy as lines: the threads with their frames, innermost last."""
    lines = []
    for thread in json.loads(text):
        marks = [
            word
            for word, key in (("active", "active"), ("has the GIL", "owns_gil"))
            if thread.get(key)
        ]
        name = thread.get("thread_name") or hex(thread["thread_id"])
        lines.append(f"thread {name} ({', '.join(marks)})" if marks else f"thread {name}")
        for frame in reversed(thread["frames"]):
            lines.append(f"    {frame['filename']}:{frame['line']} in {frame['name']}")
        lines.append("")
    return lines


def stack_rows(procs: Iterable[ProcStacks]) -> list[dict[str, Any]]:
    """Return a row for each frame of busy actors and other threads; ``num`` 0 is the innermost."""
    rows: list[dict[str, Any]] = []
    for proc in procs:
        for actor in proc.answer.get("actors", ()):
            about = {
                "k": "stack", "p": proc.uid, "rank": actor["rank"], "name": actor["name"],
                "method": actor["method"],
            }  # fmt: skip
            rows += _frame_rows(about, actor["frames"])
        for thread in proc.answer.get("threads", ()):
            if not thread["name"].startswith("actor "):
                about = {"k": "stack", "p": proc.uid, "rank": proc.rank, "op": thread["name"]}
                rows += _frame_rows(about, thread["frames"])
    return rows


def _frame_rows(
    about: dict[str, Any], frames: Sequence[Mapping[str, Any]]
) -> Iterable[dict[str, Any]]:
    for depth, frame in enumerate(reversed(frames)):
        yield {
            **about,
            "num": depth,
            "doing": frame["function"],
            "place": frame["file"],
            "seq": frame["line"],
            "text": frame["text"],
            "ok": frame["is_users"],
        }


def dump_rows(uid: str, dump: str, error: str, now: int) -> list[dict[str, Any]]:
    """Return a dump of py-spy as one row, or a row with the reason (``text``) why there is none."""
    if not dump:
        return [{"k": "py_spy", "p": uid, "t": now, "text": error}]
    threads = json.loads(dump)
    pid = threads[0]["pid"] if threads else None
    return [{"k": "py_spy", "p": uid, "t": now, "pid": pid, "dump": threads}]
