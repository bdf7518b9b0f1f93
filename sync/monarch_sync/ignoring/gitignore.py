"""Gitignore: the patterns of one rule file, matched as git's own `wildmatch` does.

A pattern without a slash is held against a name, at any depth; one with a slash against the whole
path below the file's folder. The last pattern that matches decides. Names need not be UTF-8, and
are matched byte by byte, as git does: an `é` is two of what a `?` or a `[!a]` matches one of.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

__all__ = ["RuleFile", "rules_of"]

_CLASSES = {
    "alnum": "a-zA-Z0-9", "alpha": "a-zA-Z", "blank": " \\t", "cntrl": "\\x00-\\x1f\\x7f",
    "digit": "0-9", "graph": "\\x21-\\x7e", "lower": "a-z", "print": "\\x20-\\x7e",
    "punct": "\\x21-\\x2f\\x3a-\\x40\\x5b-\\x60\\x7b-\\x7e", "space": " \\t\\n\\r", "upper": "A-Z",
    "xdigit": "0-9a-fA-F",
}  # fmt: skip
_WILD = re.compile(r"[*?\[\\]")


class _Pattern(NamedTuple):
    text: str
    regex: str
    is_negated: bool
    only_folders: bool
    by_name: bool


class RuleFile:
    """The patterns of a rule file, in order."""

    def __init__(self, raw: bytes) -> None:
        patterns = list(_parse(raw.removeprefix(b"\xef\xbb\xbf").decode("latin-1")))
        self._patterns = [(p, re.compile(p.regex, re.DOTALL)) for p in reversed(patterns)]
        # Most names match nothing: that is to be found out quickly.
        names = [p for p in patterns if p.by_name]
        plain = [p for p in names if not _WILD.search(p.text)]
        ends = [p for p in names if p.text[:1] == "*" and not _WILD.search(p.text[1:])]
        self._names = frozenset(p.text for p in plain)
        self._ends = tuple(p.text[1:] for p in ends)
        known = {*plain, *ends}
        self._wild_names = _any(p.regex for p in names if p not in known)
        self._paths = _any(p.regex for p in patterns if not p.by_name)

    @property
    def goes_by_name(self) -> bool:
        """Whether no pattern says anything about where a file lies."""
        return self._paths is None

    def verdict(self, name: str, path: str, is_dir: bool) -> bool | None:
        """Whether ``path``, relative to the file's folder, is ignored; None if nothing is said."""
        if not path.isascii():
            name, path = _by_bytes(name), _by_bytes(path)
        if (
            name not in self._names
            and not name.endswith(self._ends)
            and not (self._wild_names and self._wild_names(name))
            and not (self._paths and self._paths(path))
        ):
            return None
        for pattern, regex in self._patterns:
            if pattern.only_folders and not is_dir:
                continue
            if regex.fullmatch(name if pattern.by_name else path):
                return not pattern.is_negated
        return None


@functools.lru_cache(maxsize=1024)
def rules_of(raw: bytes) -> RuleFile | None:
    """The rules in a file's content; None if there are none."""
    rules = RuleFile(raw)
    return rules if rules._patterns else None


def _by_bytes(path: str) -> str:
    """A character for each byte."""
    return os.fsencode(path).decode("latin-1")


def _any(regexes: Iterator[str]) -> Callable[[str], object] | None:
    joined = "|".join(f"(?:{regex})" for regex in regexes)
    return re.compile(joined, re.DOTALL).fullmatch if joined else None


def _parse(text: str) -> Iterator[_Pattern]:
    for line in text.split("\n"):
        line = _trimmed(line.removesuffix("\r"))
        if not line or line.startswith("#"):
            continue
        is_negated = line.startswith("!")
        pattern = line[1:] if is_negated else line
        only_folders = pattern.endswith("/")
        if only_folders:
            pattern = pattern[:-1]
        by_name = "/" not in pattern
        regex = _regex(pattern.removeprefix("/"))
        if pattern and regex is not None:
            yield _Pattern(pattern, regex, is_negated, only_folders, by_name)


def _trimmed(line: str) -> str:
    """Without the spaces at the end, but for those behind a backslash."""
    end = at = 0
    while at < len(line):
        if line[at] == "\\":
            at += 1
            end = at + 1
        elif line[at] != " ":
            end = at + 1
        at += 1
    return line[:end]


def _regex(pattern: str) -> str | None:
    """A pattern as a regular expression; None if it can match nothing."""
    out: list[str] = []
    wild = _WILD.search(pattern)
    num_plain = wild.start() if wild else len(pattern)
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if char == "*":
            end = at
            while end < len(pattern) and pattern[end] == "*":
                end += 1
            # Git strikes off what is plain at the front: then it begins with the stars.
            is_alone = (at == num_plain or pattern[at - 1] == "/") and (
                pattern[end : end + 1] in ("", "/") or pattern.startswith("\\/", end)
            )
            if end - at >= 2 and is_alone:
                if pattern[end : end + 1] != "/":
                    out.append(".*")
                else:
                    out.append("(?:.*/)?")
                    end += 1
            else:
                out.append("[^/]*")
            at = end
        elif char == "?":
            out.append("[^/]")
            at += 1
        elif char == "[":
            found = _bracket(pattern, at)
            if found is None:
                return None
            regex, at = found
            out.append(regex)
        else:
            if char == "\\":
                at += 1
                if at == len(pattern):
                    return None
            out.append(re.escape(pattern[at]))
            at += 1
    return "".join(out)


def _bracket(pattern: str, at: int) -> tuple[str, int] | None:
    """A set of characters, and where it ends; None if it does not."""
    at += 1
    is_negated = pattern[at : at + 1] in ("!", "^") and at < len(pattern)
    at += is_negated
    parts: list[str] = []
    is_first = True
    while True:
        if at >= len(pattern):
            return None
        char = pattern[at]
        if char == "]" and not is_first:
            break
        is_first = False
        if pattern.startswith("[:", at):
            end = pattern.find("]", at + 2)
            if end < 0:
                return None
            name = pattern[at + 2 : end]
            if name.endswith(":"):
                if name[:-1] not in _CLASSES:
                    return None
                parts.append(_CLASSES[name[:-1]])
                at = end + 1
                continue
        low, at = _literal(pattern, at)
        if low is None:
            return None
        if pattern[at : at + 1] == "-" and pattern[at + 1 : at + 2] not in ("", "]"):
            high, at = _literal(pattern, at + 1)
            if high is None:
                return None
            # Git holds a name against where a range begins before it looks whether it is one.
            is_range = low <= high
            parts.append(f"{re.escape(low)}-{re.escape(high)}" if is_range else re.escape(low))
        else:
            parts.append(re.escape(low))
    at += 1
    inside = "".join(parts)
    if is_negated:
        return f"[^/{inside}]", at
    return (f"(?!/)[{inside}]" if inside else "(?!)"), at


def _literal(pattern: str, at: int) -> tuple[str | None, int]:
    if pattern[at] == "\\":
        at += 1
    return (pattern[at], at + 1) if at < len(pattern) else (None, at)
