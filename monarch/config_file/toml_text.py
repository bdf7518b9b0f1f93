"""TOML: the standard parser, and the line of each key.

The parser returns values without their lines, and an error message about a key needs the line. The
scanner here reads a text that the parser has already accepted, so it only needs to know where
strings, comments, arrays and tables end, not what is legal.
"""

from __future__ import annotations

import re
import sys

if sys.version_info >= (3, 11):
    from tomllib import TOMLDecodeError as TOMLDecodeError
    from tomllib import loads as loads
else:
    from tomli import TOMLDecodeError as TOMLDecodeError
    from tomli import loads as loads  # type: ignore[import-not-found, unused-ignore]

KeyPath = tuple[str, ...]

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
# The closing delimiter of a multi-line string may be preceded by up to two quotes of its text.
_STRING = re.compile(
    r'"""(?:\\.|[^\\])*?"""(?:""?(?!"))?'
    r"|'''.*?'''(?:''?(?!'))?"
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'[^'\n]*'",
    re.DOTALL,
)
_SCALAR = re.compile(r"[^,\]}#\n]*")


def key_lines(text: str) -> dict[KeyPath, int]:
    """Map each key and table of a legal TOML text to its first line, counted from 1.

    Keys within an array of tables are all listed under the array's name, without an index.
    """
    scanner = _Scanner(text.replace("\r\n", "\n"))
    scanner.scan()
    return scanner.lines


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.lines: dict[KeyPath, int] = {}

    def scan(self) -> None:
        table: KeyPath = ()
        while self.skip(_BLANK) < len(self.text):
            if self.text[self.at] == "[":
                self.at += 2 if self.text.startswith("[[", self.at) else 1
                table = self.key(())
                self.at = self.text.find("]", self.at)
                while self.text.startswith("]", self.at):
                    self.at += 1
            else:
                self.assignment(table)

    def assignment(self, prefix: KeyPath) -> None:
        path = self.key(prefix)
        self.at += 1  # the equals sign
        self.value(path)

    def key(self, prefix: KeyPath) -> KeyPath:
        """Read a dotted key, and note the line of each of its parts."""
        path = prefix
        while True:
            self.skip(_SPACE)
            line = self.text.count("\n", 0, self.at) + 1
            path = (*path, self.key_part())
            self.lines.setdefault(path, line)
            self.skip(_SPACE)
            if not self.text.startswith(".", self.at):
                return path
            self.at += 1

    def key_part(self) -> str:
        if self.text[self.at] in "\"'":
            quoted = self.take(_STRING)
            return str(loads(f"key = {quoted}")["key"])
        return self.take(_BARE_KEY)

    def value(self, path: KeyPath) -> None:
        self.skip(_SPACE)
        start = self.text[self.at]
        if start in "\"'":
            self.skip(_STRING)
        elif start == "[":
            self.enclosed("]", path)
        elif start == "{":
            self.enclosed("}", path)
        else:
            self.skip(_SCALAR)

    def enclosed(self, end: str, path: KeyPath) -> None:
        """Read the contents of brackets (values) or of braces (assignments)."""
        self.at += 1
        self.skip(_BLANK)
        while self.text[self.at] != end:
            if end == "}":
                self.assignment(path)
            else:
                self.value(path)
            self.skip(_BLANK)
            if self.text[self.at] == ",":
                self.at += 1
                self.skip(_BLANK)
        self.at += 1

    def skip(self, pattern: re.Pattern[str]) -> int:
        self.take(pattern)
        return self.at

    def take(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self.text, self.at)
        assert match is not None, f"not TOML at character {self.at}"
        self.at = match.end()
        return match.group()
