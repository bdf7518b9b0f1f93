"""Several jobs of one folder, each in a context with a name.

Contexts are kept with the folder's state (`places`): a context inside the folder itself, from
whoever made it, has no effect. The folder's own path leads to the state of the context in use. A
running program uses the record itself, so that another context may be used meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from monarch.errors import JobError
from monarch.job.places import (
    CONTEXTS,
    CURRENT,
    SPEC,
    STATE,
    context_in_use,
    make_project_records,
    project_records,
)
from monarch.job.places import DEFAULT_CONTEXT as DEFAULT_CONTEXT
from monarch.job.state_folder import write_private

# The variable is for the program of a detached run: its copy of the job's state is elsewhere.
JOB_PATH_VARIABLE = "MONARCH_JOB_STATE"
DEFAULT_JOB_PATH = os.environ.get(JOB_PATH_VARIABLE) or ".monarch/job_state.json"
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,62}")


def current_context() -> str:
    """Return the name of the context in use."""
    return context_in_use(project_records(Path()))


def all_contexts() -> list[str]:
    """Return the names of all contexts; the default context always exists."""
    return sorted(
        {DEFAULT_CONTEXT, *(path.name for path in _contexts().glob("*") if path.is_dir())}
    )


def state_of(name: str) -> Path:
    """Return the path of a context's record, which exists while its allocation does.

    Raises ``JobError`` if there is no such context.
    """
    _check_known(name)
    return _contexts() / name / STATE


def spec_of(name: str) -> str:
    """Return the job that the context is for: MODULE.NAME, or a project file; "" if none was
    set."""
    with contextlib.suppress(OSError):
        return (_contexts() / name / SPEC).read_text().strip()
    return ""


def write_spec(name: str, spec: str) -> None:
    """Record the job that the context is for."""
    make_project_records(Path())
    write_private(_contexts() / name / SPEC, f"{spec}\n".encode())


def create_context(name: str, spec: str | None = None) -> None:
    """Create a context. Raises ``JobError`` for a name that is taken, or is no valid name."""
    if not _NAME.fullmatch(name):
        raise JobError(f"{name!r} is no name for a context: letters, digits, '-', '_' and '.'")
    if name in all_contexts():
        raise JobError(f"there is a context {name!r} already: `monarch context use {name}`")
    make_project_records(Path())
    (_contexts() / name).mkdir(mode=0o700, parents=True)
    if spec:
        write_spec(name, spec)


def use_context(name: str) -> None:
    """Make this context the one in use in this folder.

    Raises ``JobError`` if it does not exist.
    """
    _check_known(name)
    write_private(make_project_records(Path()) / CURRENT, f"{name}\n".encode())


def remove_context(name: str) -> str:
    """Remove a context that has no allocation any more; return the name of the context then in use.

    Raises ``JobError`` for the default context, and for a name that does not exist.
    """
    _check_known(name)
    if name == DEFAULT_CONTEXT:
        raise JobError("the default context stays; `monarch kill` ends its allocation")
    if current_context() == name:
        use_context(DEFAULT_CONTEXT)
    folder = _contexts() / name
    for file in (STATE, f"ended_{STATE}", SPEC):
        (folder / file).unlink(missing_ok=True)
    folder.rmdir()
    return current_context()


def _contexts() -> Path:
    return project_records(Path()) / CONTEXTS


def _check_known(name: str) -> None:
    contexts = all_contexts()
    if name not in contexts:
        raise JobError(f"there is no context {name!r}; there are: {', '.join(contexts)}")
