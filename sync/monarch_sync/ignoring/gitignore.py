"""Gitignore: the patterns of one rule file, matched as git's own `wildmatch` does.

A pattern without a slash is matched with a name, at any depth; a pattern with a slash with the
whole path below the rule file's folder. The last pattern that matches decides. Names need not be
UTF-8, and are matched byte by byte, as git does: an `é` is two bytes, and a `?` or a `[!a]` matches
one.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

_CLASSES = {
    "alnum": "a-zA-Z0-9", "alpha": "a-zA-Z", "blank": " \\t", "cntrl": "\\x00-\\x1f\\x7f",
    "digit": "0-9", "graph": "\\x21-\\x7e", "lower": "a-z", "print": "\\x20-\\x7e",
    "punct": "\\x21-\\x2f\\x3a-\\x40\\x5b-\\x60\\x7b-\\x7e", "space": " \\t\\n\\r", "upper": "A-Z",
    "xdigit": "0-9a-fA-F",
}  # fmt: skip
_WILD = re.compile(r"[*?\[\\]")
_STARS = re.compile(r"\*+")
_STAR, _ANYTHING, _FOLDERS = "[^/]*", ".*", "(?:.*/)?"
_STANDS_FOR_MANY = (_STAR, _ANYTHING, _FOLDERS)
_REACH = {_ANYTHING: ".*?", _FOLDERS: "(?:[^/]*/)*?"}  # `**`, as short as possible
_MAX_STARS = 2  # with more, a regular expression might try for ever
_MAX_PATH = 4096
_MAX_QUICK = 256
_MAX_JOINED = 64
_MAX_START = 8


@dataclass
class _IgnoreRule:
    """One pattern, which is compiled when it is first matched."""

    text: str
    is_negated: bool
    only_folders: bool
    by_name: bool
    max_stars: int

    @property
    def is_plain(self) -> bool:
        """Whether the pattern has no wildcards."""
        return not _WILD.search(self.text)

    @property
    def is_end(self) -> bool:
        """Whether the pattern only says how a name ends."""
        return self.by_name and self.text[:1] == "*" and not _WILD.search(self.text[1:])

    @property
    def is_quick(self) -> bool:
        """Whether a regular expression matches this pattern fast: the pattern is short and has few
        stars, so that there are few ways in which the stars may fit.
        """
        return len(_STARS.findall(self.text)) <= self.max_stars and len(self.text) <= _MAX_QUICK

    @functools.cached_property
    def matches(self) -> Callable[[str], object]:
        """The function that matches a name or a path with the pattern."""
        if _is_too_long(self.text):
            return _never
        tokens = _tokens(self.text)
        if tokens is None:
            return _never
        regex = "".join(tokens) if self.is_quick else _without_retries(tokens)
        return re.compile(regex, re.DOTALL).fullmatch


class _Wild:
    """Patterns with wildcards. ``candidates`` returns the patterns that may match a name or path;
    it quickly rules out most of the others.
    """

    def __init__(self, rules: Sequence[tuple[int, _IgnoreRule]]) -> None:
        self._all = [number for number, _ in rules]
        self._joined: Callable[[str], object] | None = None
        self._by_start: dict[str, list[int]] = {}
        if len(rules) <= _MAX_JOINED and all(rule.is_quick for _, rule in rules):
            regexes = [tokens for _, rule in rules if (tokens := _tokens(rule.text)) is not None]
            joined = "|".join(f"(?:{''.join(tokens)})" for tokens in regexes)
            self._joined = re.compile(joined, re.DOTALL).fullmatch if regexes else _never
        else:
            for number, rule in rules:
                wild = _WILD.search(rule.text)
                start = rule.text[: min(wild.start() if wild else _MAX_START, _MAX_START)]
                self._by_start.setdefault(start, []).append(number)
        self._lengths = sorted({len(start) for start in self._by_start})

    def __bool__(self) -> bool:
        return bool(self._all)

    def candidates(self, text: str) -> list[int]:
        if self._joined is not None:
            return self._all if self._joined(text) else []
        return [n for length in self._lengths for n in self._by_start.get(text[:length], ())]


class RuleFile:
    """The patterns of a rule file, in order. For a pattern with more than ``max_stars`` groups of
    stars, a regular expression that never tries a second way to fit the stars is used.
    """

    def __init__(self, raw: bytes, max_stars: int = _MAX_STARS) -> None:
        text = raw.removeprefix(b"\xef\xbb\xbf").decode("latin-1")
        self._rules = list(_parse(text, max_stars))
        self._names: dict[str, list[int]] = {}
        self._paths: dict[str, list[int]] = {}
        self._ends: dict[str, list[int]] = {}
        wild: tuple[list[tuple[int, _IgnoreRule]], list[tuple[int, _IgnoreRule]]] = [], []
        for number, rule in enumerate(self._rules):
            if rule.is_plain:
                exactly = self._names if rule.by_name else self._paths
                exactly.setdefault(rule.text, []).append(number)
            elif rule.is_end:
                self._ends.setdefault(rule.text[1:], []).append(number)
            else:
                wild[rule.by_name].append((number, rule))
        self._end_lengths = sorted({len(end) for end in self._ends})
        # With this few it is quicker to ask for all of them at once.
        self._few_ends = tuple(self._ends) if len(self._ends) <= _MAX_JOINED else ("",)
        self._wild_paths, self._wild_names = map(_Wild, wild)

    def __bool__(self) -> bool:
        return bool(self._rules)

    @property
    def goes_by_name(self) -> bool:
        """Whether no pattern depends on the folder that a file is in."""
        return not self._paths and not self._wild_paths

    def verdict(self, name: str, path: str, is_dir: bool) -> bool | None:
        """Return whether ``path``, relative to the rule file's folder, is ignored; None if no
        pattern matches it."""
        if not path.isascii():
            name, path = _by_bytes(name), _by_bytes(path)
        numbers: list[int] = []
        if name in self._names:
            numbers += self._names[name]
        if self._ends and name.endswith(self._few_ends):
            for length in self._end_lengths:
                if length <= len(name):
                    numbers += self._ends.get(name[len(name) - length :], ())
        if self._wild_names:
            numbers += self._wild_names.candidates(name)
        if path in self._paths:
            numbers += self._paths[path]
        if self._wild_paths:
            numbers += self._wild_paths.candidates(path)
        for number in sorted(numbers, reverse=True):
            rule = self._rules[number]
            if rule.only_folders and not is_dir:
                continue
            if rule.matches(name if rule.by_name else path):
                return not rule.is_negated
        return None


@functools.lru_cache(maxsize=1024)
def rules_of(raw: bytes) -> RuleFile | None:
    """Return the rules in a rule file's content; None if there are none."""
    rules = RuleFile(raw)
    return rules or None


def _by_bytes(path: str) -> str:
    """Return a path as text with one character for each of its bytes."""
    return os.fsencode(path).decode("latin-1")


def _parse(text: str, max_stars: int) -> Iterator[_IgnoreRule]:
    for line in text.split("\n"):
        line = _trimmed(line.removesuffix("\r"))
        if not line or line.startswith("#"):
            continue
        is_negated = line.startswith("!")
        pattern = line[1:] if is_negated else line
        only_folders = pattern.endswith("/")
        if only_folders:
            pattern = pattern[:-1]
        if pattern:
            yield _IgnoreRule(
                pattern.removeprefix("/"),
                is_negated=is_negated,
                only_folders=only_folders,
                by_name="/" not in pattern,
                max_stars=max_stars,
            )


def _trimmed(line: str) -> str:
    """Return the line without the spaces at its end, except those behind a backslash."""
    if line[-1:] != " ":
        return line
    end = at = 0
    while at < len(line):
        if line[at] == "\\":
            at += 1
            end = at + 1
        elif line[at] != " ":
            end = at + 1
        at += 1
    return line[:end]


def _is_too_long(pattern: str) -> bool:
    """Return whether a pattern certainly matches only texts that are longer than any path."""
    if len(pattern) <= _MAX_PATH:
        return False
    if "[" in pattern or "\\" in pattern:
        tokens = _tokens(pattern)
        return tokens is None or sum(token not in _STANDS_FOR_MANY for token in tokens) > _MAX_PATH
    return len(pattern) - pattern.count("*") - pattern.count("/") > _MAX_PATH


def _tokens(pattern: str) -> list[str] | None:
    """Return a pattern as a list of regular expressions, each for one character or for a wildcard
    that matches many; None if the pattern can match nothing."""
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
            # Git removes the plain characters at the front first, so the stars begin the pattern.
            is_alone = (at == num_plain or pattern[at - 1] == "/") and (
                pattern[end : end + 1] in ("", "/") or pattern.startswith("\\/", end)
            )
            if end - at >= 2 and is_alone:
                if pattern[end : end + 1] != "/":
                    out.append(_ANYTHING)
                else:
                    out.append(_FOLDERS)
                    end += 1
            else:
                out.append(_STAR)
            at = end
        elif char == "?":
            out.append("[^/]")
            at += 1
        elif char == "[":
            bracket = _bracket(pattern, at)
            if bracket is None:
                return None
            regex, at = bracket
            out.append(regex)
        else:
            if char == "\\":
                at += 1
                if at == len(pattern):
                    return None
            out.append(re.escape(pattern[at]))
            at += 1
    return out


def _without_retries(tokens: Sequence[str]) -> str:
    """Return a regular expression for a pattern with many stars that never tries a longer match.

    The text after a star is matched at the first position where it fits. A later position is never
    needed: the next star can match what lies between, except a slash, which only `**` matches. So
    each part between two `**` has a fixed number of slashes, and a part that begins as early as
    possible also ends as early as possible.
    """
    parts: list[tuple[str, list[str]]] = [("", [""])]
    for token in tokens:
        if token in _REACH:
            parts.append((_REACH[token], [""]))
        elif token == _STAR:
            parts[-1][1].append("")
        else:
            parts[-1][1][-1] += token
    parts[-1][1][-1] += r"\Z"
    numbers = itertools.count(1)

    def first_fit(regex: str) -> str:
        name = f"fit{next(numbers)}"
        return f"(?=(?P<{name}>{regex}))(?P={name})"

    return "".join(
        first_fit(reach + first + "".join(first_fit(f"[^/]*?{piece}") for piece in pieces))
        for reach, (first, *pieces) in parts
    )


def _never(text: str) -> None:
    """Match nothing: the matcher of a pattern that can match no text."""


def _bracket(pattern: str, at: int) -> tuple[str, int] | None:
    """Return the regular expression of the character set that begins at ``at``, and the position
    behind it; None if the set has no end."""
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
            # For git, a range whose ends are in the wrong order matches its first character.
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
