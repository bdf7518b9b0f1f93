"""GitConfig: where a user's own ignore rules are, as `core.excludesFile` says.

Reads only that setting, from git's configuration files of the system, the user and the repository,
and from the files that they include (`includeIf` is not followed).
"""

from __future__ import annotations

import contextlib
import os
import re

_SECTION = re.compile(r'\[\s*([\w.-]+)\s*("(?:[^"\\]|\\.)*")?\s*\]')
_SETTINGS = {
    "core": re.compile(r"excludesfile\s*=\s*(.*)", re.IGNORECASE),
    "include": re.compile(r"path\s*=\s*(.*)", re.IGNORECASE),
}
_VALUE = re.compile(r'"((?:[^"\\]|\\.)*)"|([^"#;]+)')
_MAX_DEPTH = 10  # of files that include each other, as in git


def config_files(repository: str | None) -> list[str]:
    """Return the paths of git's configuration files, whether or not they exist. A later file
    overrides an earlier file, so a file comes after the files that it includes.

    ``repository``: the git directory; None if there is no repository. For a work tree that ``git
    worktree`` has added, pass the git directory of the main work tree.
    """
    return [file for top in _top_files(repository) for file, _ in _read(top)]


def personal_rule_file(repository: str | None) -> str:
    """Return the path of the user's own rule file, whether or not it exists."""
    path = None
    for config in _top_files(repository):
        path = excludes_file(config) or path
    return path or f"{_xdg()}/git/ignore"


def excludes_file(config: str) -> str | None:
    """Return the path of the user's rule file, if ``config`` or a file that it includes has the
    setting ``core.excludesFile``; else None."""
    *_, (_, path) = _read(config)
    return path


def _top_files(repository: str | None) -> list[str]:
    system = [os.environ.get("GIT_CONFIG_SYSTEM", "/etc/gitconfig")]
    if os.environ.get("GIT_CONFIG_NOSYSTEM", "").lower() not in ("", "0", "false", "no", "off"):
        system = []
    user = [f"{_xdg()}/git/config", os.path.expanduser("~/.gitconfig")]
    if "GIT_CONFIG_GLOBAL" in os.environ:
        user = [os.environ["GIT_CONFIG_GLOBAL"]]
    return [*system, *user, *([f"{repository}/config"] if repository else [])]


def _read(config: str, depth: int = 0) -> list[tuple[str, str | None]]:
    """Return a list of (path, excludes file): first the files that a configuration file includes,
    then the configuration file itself.

    "Excludes file" is the value of ``core.excludesFile`` after that file was read; None if it is
    not set.
    """
    lines: list[str] = []
    with contextlib.suppress(OSError), open(config, "rb") as file:
        lines = os.fsdecode(file.read()).split("\n")
    files: list[tuple[str, str | None]] = []
    excludes, name = None, ""
    for line in lines:
        line = line.strip()
        if section := _SECTION.match(line):
            name = section[1].lower() if section[2] is None else ""
            line = line[section.end() :].lstrip()
        setting = _SETTINGS[name].fullmatch(line) if name in _SETTINGS else None
        if setting is None:
            continue
        value = os.path.expanduser(_value(setting[1]))
        if name == "core":
            excludes = value or None
        elif value and depth < _MAX_DEPTH:
            files += _read(os.path.join(os.path.dirname(config), value), depth + 1)
            excludes = files[-1][1] or excludes
    return [*files, (config, excludes)]


def _value(text: str) -> str:
    """Return the value of a line without its quotes and without a comment behind it."""
    value, at = "", 0
    while part := _VALUE.match(text, at):
        quoted, plain = part.groups()
        value += re.sub(r"\\(.)", r"\1", plain if quoted is None else quoted)
        at = part.end()
    return value.rstrip()


def _xdg() -> str:
    return os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
