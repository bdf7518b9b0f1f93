"""Which paths are left out of a workspace.

Git's rules exactly: nested and negated `.gitignore`, `info/exclude`, the user's own
`core.excludesFile`; and `.monarchignore` in the same syntax, which has the last word. A file that
git tracks although git's rules ignore it is included. Always left out: `.git`, `__pycache__`,
compiled Python, virtual environments, editors' temporary files beside a file, our own `.monarch`,
and the paths that match the workspace's own patterns.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Container, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from monarch_sync.ignoring.git_config import config_files, personal_rule_file
from monarch_sync.ignoring.git_index import common_dir, find_git_dir, git_dir_of
from monarch_sync.ignoring.gitignore import RuleFile, rules_of
from monarch_sync.progress import progress

_OF_EDITORS = ("*~", ".*.sw[nopx]", ".#*", "\\#*#")
NEVER = (".git", "__pycache__", "*.pyc", "*.pyo", ".*.monarch", ".monarch", *_OF_EDITORS)
_ENVIRONMENT = "pyvenv.cfg"
IGNORE_FILE, _GIT = ".monarchignore", ".gitignore"
OUTER_NAMES = (_GIT, IGNORE_FILE)  # of rule files that count from the folders above, too
RULE_FILES = frozenset({_GIT, IGNORE_FILE, _ENVIRONMENT})
_NO_RULES = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP)  # no file, or not for git


class _Level(NamedTuple):
    """The rules of one folder. ``start``: how many characters of an absolute path are the folder's
    own path. The rules match the rest of the path.
    """

    start: int
    own: RuleFile | None
    git: RuleFile | None
    exclude: RuleFile | None
    is_repository: bool


class _Rules(NamedTuple):
    """The ignore rules of a workspace's folder that apply to everything in it. The rule files of
    its inner folders are not among them.
    """

    never: RuleFile | None
    personal: RuleFile | None
    start: int
    personal_start: int
    uses_git: bool

    def leave_out(self, levels: list[_Level], path: str, name: str, is_dir: bool) -> bool:
        """Return whether the rules leave out a path. ``levels`` are the rules of the folders above
        the path, nearest first.
        """
        if self.never is not None and self.never.verdict(name, path[self.start :], is_dir):
            return True
        for level in levels:
            if level.own is not None:
                verdict = level.own.verdict(name, path[level.start :], is_dir)
                if verdict is not None:
                    return verdict
        if not self.uses_git:
            return False
        exclude: bool | None = None
        for level in levels:
            if level.git is not None:
                verdict = level.git.verdict(name, path[level.start :], is_dir)
                if verdict is not None:
                    return verdict
            if level.exclude is not None:
                exclude = level.exclude.verdict(name, path[level.start :], is_dir)
            if level.is_repository:
                break
        if exclude is None and self.personal is not None:
            exclude = self.personal.verdict(name, path[self.personal_start :], is_dir)
        return bool(exclude)


def walk(
    folder: Path,
    patterns: Sequence[str] = (),
    below: str = "",
    depth: int | None = None,
    *,
    on_error: Callable[[str, OSError], None] | None = None,
    uses_git: bool = True,
) -> Iterator[str]:
    """Yield the paths that belong to a workspace, relative to its ``folder``, folders before
    content.

    ``patterns`` are further patterns of paths to leave out, in `.gitignore` syntax, relative to
    ``folder``. ``below`` restricts the walk to that inner folder, ``depth`` 1 to the entries right
    in it; the rules of the folders above apply all the same. ``on_error`` is called for folders
    that cannot be listed, or whose rules cannot be read: it is unknown which of their files belong
    here.
    """
    for path, _ in walk_kinds(folder, patterns, below, depth, on_error=on_error, uses_git=uses_git):
        yield path


def walk_kinds(
    folder: Path,
    patterns: Sequence[str] = (),
    below: str = "",
    depth: int | None = None,
    *,
    on_error: Callable[[str, OSError], None] | None = None,
    on_environment: Callable[[str], None] | None = None,
    uses_git: bool = True,
) -> Iterator[tuple[str, bool]]:
    """Walk as ``walk`` does, but yield (path, whether it is a folder). ``on_environment`` is called
    with each virtual environment; it is left out even if no rule names it."""
    root = str(folder).rstrip("/")
    top = f"{root}/{below}" if below else root
    repository = find_git_dir(root)
    rules = _Rules(
        rules_of(os.fsencode("\n".join((*NEVER, *patterns)))),
        _personal(repository and repository[1]) if uses_git else None,
        len(root) + 1,
        len(repository[0].rstrip("/") if repository else root) + 1,
        uses_git,
    )
    levels = [_level(above) for above in _folders_above(top)]
    stack = [(top, below, levels)]
    push_progress = progress()
    while stack:
        at, relative, above = stack.pop()
        try:
            with os.scandir(at or "/") as listing:
                # A loop, which Ctrl-C ends at once; it would end `list` only after the last entry.
                entries = [entry for entry in listing]  # noqa: C416
            os.lstat(f"{at}/.")  # fails in a folder that may be listed and not entered
            level = _level(at, {entry.name for entry in entries})
        except OSError as error:
            if on_error is not None:
                on_error(relative, error)
            continue
        inside = [level, *above] if level.own or level.git or level.is_repository else above
        prefix = f"{relative}/" if relative else ""
        for entry in entries:
            push_progress.num_listed += 1
            name = entry.name
            is_dir = entry.is_dir(follow_symlinks=False)
            if rules.leave_out(inside, f"{at}/{name}", name, is_dir):
                continue
            if not is_dir:
                yield prefix + name, False
            elif not is_environment(f"{at}/{name}"):
                yield prefix + name, True
                if depth is None:
                    stack.append((f"{at}/{name}", prefix + name, inside))
            elif on_environment is not None:
                on_environment(prefix + name)


def judges_alike(
    folder: Path, patterns: Sequence[str], old: str, new: str, *, uses_git: bool = True
) -> bool:
    """Return whether the rules of the folders above treat a folder's content alike under its old
    and its new name; both are relative to a workspace's ``folder``."""
    root = str(folder).rstrip("/")
    folders_above = [dict.fromkeys(_folders_above(f"{root}/{path}")) for path in (old, new)]
    shared = folders_above[0].keys() & folders_above[1].keys()
    repository = find_git_dir(root)
    everywhere = [
        rules_of(os.fsencode("\n".join(patterns))),
        _personal(repository and repository[1]) if uses_git else None,
    ]
    for above in folders_above[0].keys() | folders_above[1].keys():
        level = _level(above)
        rules = [level.own, level.git, level.exclude]
        if above in shared:
            everywhere += rules
        elif level.is_repository or any(rules):
            return False
    return all(rule_file is None or rule_file.goes_by_name for rule_file in everywhere)


def _level(folder: str, names: Container[str] | None = None) -> _Level:
    """Return the rules in the rule files of a folder itself, not of the folders in it.

    ``names`` are the names in the folder, if the caller has listed it; an unreadable rule file then
    raises ``OSError``.
    """
    is_there = names is not None
    own = git = None
    if names is None or IGNORE_FILE in names:
        own = _read(f"{folder}/{IGNORE_FILE}", is_there=is_there)
    if names is None or _GIT in names:
        git = _read(f"{folder}/{_GIT}", is_there=is_there, flags=os.O_NOFOLLOW)
    exclude, git_dir = None, None
    if names is None or ".git" in names:
        git_dir = git_dir_of(folder or "/")
    if git_dir is not None:
        exclude = _read(exclude_file(git_dir))
    return _Level(len(folder) + 1, own, git, exclude, git_dir is not None)


def _read(path: str, *, is_there: bool = False, flags: int = 0) -> RuleFile | None:
    def opened(path: str, mode: int) -> int:
        return os.open(path, mode | flags)

    try:
        with open(path, "rb", buffering=0, opener=opened) as file:
            return rules_of(file.read())
    except OSError as error:
        if is_there and error.errno not in _NO_RULES:
            raise OSError(error.errno, error.strerror, path) from None
        return None


def is_environment(folder: str) -> bool:
    """Return whether a folder is a virtual environment."""
    return os.path.exists(f"{folder}/{_ENVIRONMENT}")


def _folders_above(path: str) -> Iterator[str]:
    """Yield the folders above an absolute path, deepest first; the last is "", the root."""
    while path:
        path = path.rpartition("/")[0]
        yield path


def exclude_file(git_dir: str) -> str:
    """Return the path of a repository's own rule file (`info/exclude`)."""
    return f"{common_dir(git_dir)}/info/exclude"


def _personal(git_dir: str | None) -> RuleFile | None:
    """Return the user's own rules: `core.excludesFile`, or git's default for it."""
    return _read(personal_rule_file(git_dir and common_dir(git_dir)))


def other_rule_files(git_dir: str | None) -> list[str]:
    """Return the rule files that apply to a folder but are neither in it nor above it, and git's
    configuration files, which may name further rule files.

    The files may not exist. ``git_dir``: the git directory of the repository that the folder is in;
    None if it is in none.
    """
    repository = common_dir(git_dir) if git_dir is not None else None
    exclude = [exclude_file(git_dir)] if git_dir is not None else []
    return [*exclude, *config_files(repository), personal_rule_file(repository)]


def is_wanted(
    folder: Path,
    patterns: Sequence[str],
    path: str,
    wanted: dict[str, frozenset[str]],
    *,
    uses_git: bool = True,
) -> bool:
    """Return whether `walk` would yield a path. ``wanted`` caches the answers by folder, for
    further calls."""
    parent = path.rpartition("/")[0]
    if parent and not is_wanted(folder, patterns, parent, wanted, uses_git=uses_git):
        return False
    if parent not in wanted:
        wanted[parent] = frozenset(walk(folder, patterns, parent, depth=1, uses_git=uses_git))
    return path in wanted[parent]
