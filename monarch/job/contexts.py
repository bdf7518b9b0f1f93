"""Where a job's state file lies: one place a folder, or one a context, for several jobs there.

    .monarch/job_state.json                      the state; with contexts, a link to the one in use
    .monarch/contexts/NAME/job_state.json  spec  of each context, with the job that it is for

A running program goes by the file itself, so that another context may be used meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from monarch import ours
from monarch.errors import JobError

# The variable is for the program of a detached run: what it has of its job lies elsewhere.
JOB_PATH_VARIABLE = "MONARCH_JOB_STATE"
DEFAULT_JOB_PATH = os.environ.get(JOB_PATH_VARIABLE) or ".monarch/job_state.json"
DEFAULT_CONTEXT = "default"
_CONTEXTS = Path(".monarch/contexts")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,62}")


def refuse_foreign_link(path: Path) -> None:
    """Raises ``JobError`` for a link that another user has made."""
    if path.is_symlink() and path.lstat().st_uid != os.getuid():
        raise JobError(f"{path} is a link that another user has made; remove it")


def followed(path: Path) -> Path:
    """The file itself, where ``path`` is a link to it."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def current_context() -> str:
    """The one in use."""
    path = Path(DEFAULT_JOB_PATH)
    return Path(os.readlink(path)).parent.name if path.is_symlink() else DEFAULT_CONTEXT


def all_contexts() -> list[str]:
    """The names of all contexts; there is always the default one."""
    made = [one.name for one in _CONTEXTS.glob("*") if one.is_dir()]
    return sorted({DEFAULT_CONTEXT, *made})


def state_of(name: str) -> Path:
    """The state file of a context, which is there while its allocation is. Raises ``JobError``."""
    _check_known(name)
    if name == DEFAULT_CONTEXT and not Path(DEFAULT_JOB_PATH).is_symlink():
        return Path(DEFAULT_JOB_PATH)
    return _CONTEXTS / name / Path(DEFAULT_JOB_PATH).name


def spec_of(name: str) -> str:
    """Which job it is for: MODULE.NAME, or a project file; empty if nothing was said."""
    with contextlib.suppress(OSError):
        return (_CONTEXTS / name / "spec").read_text().strip()
    return ""


def write_spec(name: str, spec: str) -> None:
    """Note which job it is for."""
    folder = _CONTEXTS / name
    folder.mkdir(parents=True, exist_ok=True)
    _keep_from_git()
    (folder / "spec").write_text(f"{spec}\n")


def create_context(name: str, spec: str | None = None) -> None:
    """Make one. Raises ``JobError`` for a name that is taken, or none."""
    if not _NAME.fullmatch(name):
        raise JobError(f"{name!r} is no name for a context: letters, digits, '-', '_' and '.'")
    if name in all_contexts():
        raise JobError(f"there is a context {name!r} already: `monarch context use {name}`")
    (_CONTEXTS / name).mkdir(parents=True)
    _keep_from_git()
    if spec:
        write_spec(name, spec)


def use_context(name: str) -> None:
    """Have the state file lead to that of this context. Raises ``JobError`` for one that is not
    there."""
    _check_known(name)
    path = Path(DEFAULT_JOB_PATH)
    refuse_foreign_link(path)
    target = _CONTEXTS / name / path.name
    target.parent.mkdir(parents=True, exist_ok=True)
    _keep_from_git()
    if path.exists() and not path.is_symlink():
        default = _CONTEXTS / DEFAULT_CONTEXT
        default.mkdir(parents=True, exist_ok=True)
        os.replace(path, default / path.name)
    link = path.with_name(f".{path.name}.{os.getpid()}")
    link.unlink(missing_ok=True)
    link.symlink_to(target.relative_to(path.parent))
    os.replace(link, path)


def remove_context(name: str) -> str:
    """Take one away that has no allocation any more; the one that is used then."""
    _check_known(name)
    if name == DEFAULT_CONTEXT:
        raise JobError("the default context stays; `monarch kill` ends its allocation")
    now = current_context()
    if now == name:
        now = DEFAULT_CONTEXT
        use_context(now)
    ours.remove_folder(_CONTEXTS / name, _CONTEXTS, name=_NAME.pattern)
    return now


def _check_known(name: str) -> None:
    known = all_contexts()
    if name not in known:
        raise JobError(f"there is no context {name!r}; there are: {', '.join(known)}")


def _keep_from_git() -> None:
    ignore = _CONTEXTS.parent / ".gitignore"
    with contextlib.suppress(FileExistsError), open(ignore, "x") as file:
        file.write("*\n")
