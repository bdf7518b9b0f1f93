"""Explain why a path is, or is not, part of a workspace: which rule, in which file, on which line.

A walk as in a scan decides whether it is. The deciding line is found by trying one line at a time,
so the explanation always agrees with the rule's effect.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from monarch_sync.ignoring.git_config import personal_rule_file
from monarch_sync.ignoring.git_index import common_dir, find_git_dir
from monarch_sync.ignoring.gitignore import rules_of
from monarch_sync.ignoring.ignore import (
    IGNORE_FILE,
    NEVER,
    exclude_file,
    is_environment,
    walk,
)
from monarch_sync.ignoring.tracked import Tracked
from monarch_sync.scanning.unreadable import listing_fault, tracking_fault
from monarch_sync.tree.entry import folders_above, is_reserved, path_fault, target_fault
from monarch_sync.workspace import Folder, Workspace


class Rule(NamedTuple):
    """An ignore rule. ``file`` is the ignore file; for a pattern that is in no file, it is the name
    of the pattern's source, and ``line`` is 0.
    """

    file: str
    line: int
    pattern: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        return f"{self.pattern!r} ({where})"


class Explanation(NamedTuple):
    """Whether a path is synced, and why. ``remote``: where it lands, below the replica's root.
    ``code`` is for programs."""

    path: str
    is_in: bool
    code: str
    reason: str
    remote: str = ""
    rule: Rule | None = None

    def __str__(self) -> str:
        return f"{self.path}: {'in' if self.is_in else 'left out'}: {self.reason}"


def explain(workspace: Workspace, path: str | os.PathLike[str]) -> Explanation:
    """Explain why ``path`` (absolute, or relative to the working directory) is synced, or is
    not."""
    given_path = os.fspath(path)
    local = Path(os.path.abspath(Path(path).expanduser()))
    # The folder's own links are followed, those below it are not.
    candidates = [local, Path(os.path.realpath(local.parent)) / local.name]
    for folder in workspace.folders:
        for candidate in candidates:
            if candidate == folder.local or folder.local in candidate.parents:
                return _within(workspace, folder, given_path, candidate)
    folders = ", ".join(str(folder.local) for folder in workspace.folders) or "no folder"
    return Explanation(
        given_path, False, "outside", f"it lies outside the workspace, which is {folders}"
    )


def _within(workspace: Workspace, folder: Folder, given_path: str, local: Path) -> Explanation:
    relative = "" if local == folder.local else str(local.relative_to(folder.local))
    remote = folder.remote_of(relative)

    def out(code: str, reason: str, rule: Rule | None = None) -> Explanation:
        return Explanation(
            path=given_path, is_in=False, code=code, reason=reason, remote=remote, rule=rule
        )

    if not folder.local.is_dir():
        return out("missing", f"the workspace folder {folder.local} is not there")
    if not relative:
        return Explanation(
            given_path, True, "root", f"it is a folder of the workspace; {_lands(remote)}"
        )
    try:
        os.lstat(local)
    except (FileNotFoundError, NotADirectoryError):
        return out("missing", "there is no such file")
    except OSError:
        pass  # The check of a folder above gives the reason.
    parts = relative.split("/")
    if reserved := next(filter(is_reserved, parts), None):
        return out("reserved", f"{reserved}/ belongs to monarch itself, here and on the hosts")
    kept_by_git = ""
    for depth in range(1, len(parts) + 1):
        part = "/".join(parts[:depth])
        whole = folder.local / part
        about = "it" if depth == len(parts) else f"its folder {part}/"
        if depth < len(parts) and whole.is_symlink():
            return out(
                "behind-link", f"{part} is a link, and links are synced as links, not followed"
            )
        if fault := _fault(folder.remote_of(part), whole):
            return out("unfit", f"{about} {fault}")
        if not whole.is_symlink() and is_environment(str(whole)):
            return out("environment", f"{about} is a virtual environment (it has a pyvenv.cfg)")
        parent, is_dir = os.path.dirname(part), whole.is_dir() and not whole.is_symlink()
        if part in walk(folder.local, workspace.ignore, parent, depth=1) and not kept_by_git:
            if why := _unreadable(workspace, folder, part):
                return out("unreadable", f"{about} {why}; hosts keep what they have of it")
            continue
        if pattern := _override(NEVER, part, is_dir):
            return out("never", f"{about} is never synced", Rule("built in", 0, pattern))
        if pattern := _override(workspace.ignore, part, is_dir):
            rule_of_workspace = Rule("the workspace's own `ignore`", 0, pattern)
            return out("workspace", f"{about} matches {rule_of_workspace}", rule_of_workspace)
        rule = _deciding(folder.local, part)
        if not kept_by_git:
            listed = set(walk(folder.local, workspace.ignore))
            try:
                tracked = Tracked(folder, workspace.ignore, listed).there(relative)
            except OSError as error:
                why = f"{about} matches an ignore rule, and {tracking_fault(error)}"
                return out("unreadable", f"{why}; hosts keep what they have of it")
            if not tracked:
                matched = f"matches {rule}" if rule else "is left out by an ignore rule"
                return out("ignored", f"{about} {matched}", rule)
            kept_by_git = str(rule) if rule else "an ignore rule"
    if kept_by_git:
        reason = f"git tracks it, though {kept_by_git} would leave it out; {_lands(remote)}"
        return Explanation(given_path, True, "tracked", reason, remote)
    rule = _deciding(folder.local, relative)
    if rule is not None and rule.pattern.startswith("!"):
        reason = f"{rule} takes it back in; {_lands(remote)}"
        return Explanation(
            path=given_path, is_in=True, code="negated", reason=reason, remote=remote, rule=rule
        )
    return Explanation(
        given_path, True, "plain", f"no rule leaves it out; {_lands(remote)}", remote
    )


def _lands(remote: str) -> str:
    return f"on the hosts it is $WORKSPACE_DIR/{remote}" if remote else "it lands in $WORKSPACE_DIR"


def _fault(remote: str, local: Path) -> str:
    """Return why a scan would report this path as a problem although it can be read; "" if it would
    not.
    """
    if fault := path_fault(remote):
        return fault
    status = os.lstat(local)
    if stat.S_ISLNK(status.st_mode):
        return target_fault(remote, os.readlink(local))
    if stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode):
        return ""
    return "is neither a file nor a folder nor a link"


def _unreadable(workspace: Workspace, folder: Folder, relative: str) -> str:
    """Return why a file cannot be read, or why a folder cannot be listed; "" if it can."""
    faults: list[OSError] = []
    local = folder.local / relative
    try:
        if stat.S_ISREG(os.lstat(local).st_mode):
            with open(local, "rb", buffering=0) as file:
                file.read(1)
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"

    def note(_: str, error: OSError) -> None:
        faults.append(error)

    if local.is_dir() and not local.is_symlink():
        list(walk(folder.local, workspace.ignore, relative, depth=1, on_error=note))
    return listing_fault(faults[0]) if faults else ""


def _override(patterns: Sequence[str], relative: str, is_dir: bool) -> str:
    """Return the first of ``patterns`` that would leave the path out if it were the only pattern;
    "" if none would.
    """
    return next((pattern for pattern in patterns if _matches(pattern, relative, is_dir)), "")


def _deciding(folder: Path, relative: str) -> Rule | None:
    """Return the rule of an ignore file by which a path is left out or kept; None if no rule
    matches the path.
    """
    is_dir = (folder / relative).is_dir() and not (folder / relative).is_symlink()
    for base, shown_name, file in _rule_files(folder, relative):
        try:
            lines = os.fsdecode(file.read_bytes()).split("\n")
        except OSError:
            continue
        inner = str((folder / relative).relative_to(base))
        for number in range(len(lines), 0, -1):
            line = lines[number - 1].removeprefix("\ufeff" if number == 1 else "").rstrip("\r")
            if not line.strip() or line.startswith("#"):
                continue
            if _matches(line.removeprefix("!"), inner, is_dir):
                return Rule(shown_name, number, line.strip())
    return None


def _matches(pattern: str, inner: str, is_dir: bool) -> bool:
    """Return whether ``pattern`` leaves out the path ``inner``, which is relative to the folder
    that the pattern applies to.
    """
    rules = rules_of(os.fsencode(pattern))
    return rules is not None and rules.verdict(os.path.basename(inner), inner, is_dir) is True


def _rule_files(folder: Path, relative: str) -> Iterator[tuple[Path, str, Path]]:
    """Yield (folder that the patterns are relative to, name to show, file), the strongest file
    first."""
    inside = [folder / parent for parent in (*folders_above(relative), "")]
    above = list(folder.parents)
    for parent in (*inside, *above):
        yield parent, _name(folder, parent / IGNORE_FILE), parent / IGNORE_FILE
    # Another repository inside has its own rules.
    nearest = find_git_dir(str(inside[0]))
    top = Path(nearest[0]) if nearest else Path("/")
    for parent in (*inside, *above):
        file = parent / ".gitignore"
        if (parent == top or top in parent.parents) and not file.is_symlink():
            yield parent, _name(folder, file), file
    if nearest:
        exclude = Path(exclude_file(nearest[1]))
        yield top, _name(folder, exclude), exclude
    repository = find_git_dir(str(folder))
    personal = Path(personal_rule_file(common_dir(repository[1]) if repository else None))
    yield Path(repository[0]) if repository else Path("/"), str(personal), personal


def _name(folder: Path, file: Path) -> str:
    try:
        return str(file.relative_to(folder))
    except ValueError:
        return str(file)
