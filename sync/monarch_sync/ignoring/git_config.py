"""GitConfig: where a user's own ignore rules are, as `core.excludesFile` says.

Read from git's files, of the system, the user and the repository, as far as that one setting goes:
files that those include are not followed.
"""

from __future__ import annotations

import os
import re

__all__ = ["config_files", "excludes_file", "personal_rule_file"]

_SECTION = re.compile(r'\[\s*([\w.-]+)\s*("(?:[^"\\]|\\.)*")?\s*\]')
_SETTING = re.compile(r"excludesfile\s*=\s*(.*)", re.IGNORECASE)
_VALUE = re.compile(r'"((?:[^"\\]|\\.)*)"|([^"#;]+)')


def config_files(repository: str | None) -> list[str]:
    """Git's configuration, the strongest last. ``repository``: its git directory, if there is one;
    that of the first work tree."""
    user = [f"{_xdg()}/git/config", os.path.expanduser("~/.gitconfig")]
    return ["/etc/gitconfig", *user, *([f"{repository}/config"] if repository else [])]


def personal_rule_file(repository: str | None) -> str:
    """Where the user's own rules are, if there are any."""
    found = None
    for config in config_files(repository):
        found = excludes_file(config) or found
    return found or f"{_xdg()}/git/ignore"


def excludes_file(config: str) -> str | None:
    """What one file of the configuration says."""
    try:
        with open(config, "rb") as file:
            lines = os.fsdecode(file.read()).split("\n")
    except OSError:
        return None
    found, is_core = None, False
    for line in lines:
        line = line.strip()
        if section := _SECTION.match(line):
            is_core = section[1].lower() == "core" and section[2] is None
            line = line[section.end() :].lstrip()
        if is_core and (setting := _SETTING.fullmatch(line)):
            found = _value(setting[1])
    return os.path.expanduser(found) if found else None


def _value(text: str) -> str:
    """Without quotes, and without the comment behind it."""
    value, at = "", 0
    while part := _VALUE.match(text, at):
        quoted, plain = part.groups()
        value += re.sub(r"\\(.)", r"\1", plain if quoted is None else quoted)
        at = part.end()
    return value.rstrip()


def _xdg() -> str:
    return os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
