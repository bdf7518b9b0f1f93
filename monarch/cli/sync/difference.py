"""``monarch sync diff``: compares the author's files with a generation, as a unified diff."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator

from monarch_sync import Manifest
from monarch_sync.tree.entry import Entry
from monarch_sync.words import printable

_MAX_BYTES = 4 << 20

Read = Callable[[Entry], bytes | None]
"""The content of a file; None where it is not to be had any more."""


def differences(
    old: Manifest, new: Manifest, read_old: Read, read_new: Read, name: str
) -> Iterator[str]:
    """Yield the lines of a diff from ``old``, whose name is ``name``, to ``new``."""
    for path in sorted(new.changed_paths(old)):
        old_entry, new_entry = old.get(path), new.get(path)
        # An added or removed folder shows by its contents.
        if old_entry is None and new.folder(path).num_entries:
            continue
        if new_entry is None and old.folder(path).num_entries:
            continue
        yield from _of_path(path, old_entry, new_entry, read_old, read_new, name)


def _of_path(
    path: str, old: Entry | None, new: Entry | None, read_old: Read, read_new: Read, name: str
) -> Iterator[str]:
    name_shown = printable(path)
    if old is not None and new is not None and old.kind is new.kind:
        if old.mode != new.mode and not old.is_link:
            yield f"mode of {name_shown}: {old.mode:03o} in {name}, {new.mode:03o} here"
        if (old.digest, old.target) == (new.digest, new.target):
            return
    sides = (old, new)
    if any(entry is not None and not entry.is_file for entry in sides):
        yield f"{name_shown}: {_kind(old)} in {name}, {_kind(new)} here"
        return
    if any(entry is not None and entry.size > _MAX_BYTES for entry in sides):
        yield f"{name_shown} differs: {_size(old)} in {name}, {_size(new)} here; too large to show"
        return
    texts = []
    for entry, read in ((old, read_old), (new, read_new)):
        content = b"" if entry is None else read(entry)
        if content is None:
            yield f"{name_shown} differs; its content in {name} is gone from the hosts"
            return
        text = _text(content)
        if text is None:
            yield f"binary file {name_shown} differs: {_size(old)} in {name}, {_size(new)} here"
            return
        texts.append(text)
    label_old = "/dev/null" if old is None else f"{name}/{name_shown}"
    label_new = "/dev/null" if new is None else f"here/{name_shown}"
    diff_lines = difflib.unified_diff(texts[0], texts[1], label_old, label_new, lineterm="")
    empty = True
    for line in diff_lines:
        empty = False
        yield line
    if empty:
        # An empty file, new or gone: nothing to compare line by line.
        yield from (f"--- {label_old}", f"+++ {label_new}")


def _text(content: bytes) -> list[str] | None:
    """Return the lines of a file; ``None`` if it is no text."""
    if b"\0" in content:
        return None
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return None
    lines = text.split("\n")
    if lines[-1] == "":
        return lines[:-1]
    return [*lines[:-1], f"{lines[-1]}\n\\ No newline at end of file"]


def _kind(entry: Entry | None) -> str:
    if entry is None:
        return "nothing"
    return (
        f"a link to {printable(entry.target)}" if entry.is_link else f"a {_KINDS[entry.kind.value]}"
    )


_KINDS = {"file": "file", "dir": "folder", "link": "link"}


def _size(entry: Entry | None) -> str:
    return "nothing" if entry is None else f"{entry.size:,} bytes"
