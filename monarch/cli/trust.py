"""Trust in project files: asks once whether a file may run commands, and again after an edit.

A `monarch.toml` may come from a stranger. Its `[job]` makes us run commands (ssh, sbatch, a
cluster's login plugins), import modules and set variables of processes, so a person must agree to
exactly these. The agreement is kept in the state folder, by the file's real path.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import click

from monarch.cli.terminal.confirm import is_somebody_there
from monarch.errors import JobError

TRUST_VARIABLE = "MONARCH_TRUST"
_PURPOSE = "trust"
HARMLESS_KINDS = ("process", "local")
_OF_ALL_KINDS = ("env", "preload")
# Numbers and names for a scheduler, which run nothing. Keys that are not listed are asked about;
# those of kinds that are not the project's have no effect.
_HARMLESS = (
    "port", "partition", "account", "qos", "time_limit", "gpus_per_node", "cpus_per_task", "mem",
    "exclusive", "start_timeout", "timeout", "grace_seconds", "idle_minutes", "machine",
)  # fmt: skip


class ProjectLike(Protocol):
    """The contents of a project file, its folder, and its path.

    It is `Project`, which this module cannot import: ``project.py`` imports this one.
    """

    @property
    def file(self) -> Any: ...

    @property
    def directory(self) -> Path: ...

    @property
    def path(self) -> Path: ...


class Powers(NamedTuple):
    """The keys of a project file that make us run something, with their values.

    ``files`` are the files that these name, with a digest of each content.
    """

    keys: dict[str, Any]
    files: dict[str, str]

    @property
    def digest(self) -> str:
        text = json.dumps([self.keys, self.files], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def lines(self) -> list[str]:
        """Return lines for a person, with a stranger's text escaped."""
        lines = [f"    {name} = {json.dumps(value)}" for name, value in self.keys.items()]
        return lines + [f"    with the file {json.dumps(name)}" for name in self.files]


def powers_of(project: ProjectLike) -> Powers:
    """Return the keys of the project's `[job]` that make us run something; none if it is
    harmless."""
    job = project.file.job
    keys = {name: getattr(job, name) for name in _OF_ALL_KINDS if getattr(job, name)}
    if job.kind not in HARMLESS_KINDS:
        # For other kinds, `hosts` are numbers.
        keys = {"kind": job.kind} | ({"hosts": job.hosts} if job.kind == "ssh" else {}) | keys
        section, usual = getattr(job, job.kind), getattr(type(job)(), job.kind)
        for field in dataclasses.fields(section):
            value = getattr(section, field.name)
            if field.name not in _HARMLESS and value != getattr(usual, field.name):
                keys[f"{job.kind}.{field.name}"] = value
    files = {}
    for value in keys.values():
        for path in _named_files(value, project.directory):
            files[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest()
    return Powers(keys, files)


def _named_files(value: Any, folder: Path) -> Iterator[Path]:
    """Yield the files that the words of a value name, as `-F ssh_config` does.

    An edit of such a file changes what is run.
    """
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        for each in value:
            yield from _named_files(each, folder)
    if not isinstance(value, str):
        return
    words = [word for word in re.split(r"[\s=,:;'\"]+", value) if word]
    for word in [value, *words, *(word[2:] for word in words if word.startswith("-"))]:
        for base in dict.fromkeys((folder, Path.cwd())):
            path = base / os.path.expanduser(word)
            try:
                if word and path.is_file() and os.access(path, os.R_OK):
                    yield path
            except (OSError, ValueError):
                continue


def is_trusted(project: ProjectLike) -> bool:
    """Whether the person has agreed to all that the project runs; True if it runs nothing."""
    powers = powers_of(project)
    if not powers.keys or os.environ.get(TRUST_VARIABLE) == "1":
        return True
    from monarch.job.state_folder import NotSigned, read_private, verified

    try:
        fields = verified(_PURPOSE, read_private(_note_of(_file_of(project))))
    except (FileNotFoundError, NotADirectoryError, ValueError, NotSigned):
        return False
    return fields.get("path") == str(_file_of(project)) and fields.get("digest") == powers.digest


def require_trust(project: ProjectLike, *, may_ask: bool = True) -> None:
    """Ask the person at a terminal, if they have not agreed to what the project runs.

    Raises ``JobError`` if they do not agree, or nobody can be asked.
    """
    if is_trusted(project):
        return
    file = _file_of(project)
    powers = powers_of(project)
    problem = f"{file} has monarch run what its author chose, and you have not agreed to that"
    if not (may_ask and is_somebody_there()):
        raise JobError("\n".join([f"{problem}:", *powers.lines(), how_to_trust(project)]))
    click.echo("\n".join([f"{problem}:", *powers.lines()]))
    if not click.confirm("Trust it, until one of these lines is edited?"):
        raise JobError(f"{file} is not trusted, so nothing of it was run")
    _note(file, powers)


def how_to_trust(project: ProjectLike) -> str:
    """Return the sentence for a person who could not be asked."""
    return (
        f"`monarch trust {_file_of(project)}` agrees to it; in a script, {TRUST_VARIABLE}=1 in the "
        "environment does for all project files"
    )


def note_trust(project: ProjectLike) -> None:
    """Record that this user agrees to what the project now runs."""
    powers = powers_of(project)
    if powers.keys:
        _note(_file_of(project), powers)


def take_back(file: Path) -> None:
    """Revoke the trust in a project file. Raises ``JobError`` if it is not trusted."""
    note = _note_of(Path(os.path.realpath(file)))
    if not note.exists():
        raise JobError(f"{file} is not trusted, so there is nothing to take back")
    note.unlink()


def trusted_files() -> list[str]:
    """Return the paths of the trusted project files."""
    from monarch.job.state_folder import NotSigned, read_private, state_path, verified

    paths = []
    for note in (state_path() / "trusted").glob("*.json"):
        try:
            paths.append(str(verified(_PURPOSE, read_private(note))["path"]))
        except (OSError, ValueError, KeyError, NotSigned):
            continue
    return sorted(paths)


def _note(file: Path, powers: Powers) -> None:
    from monarch.job.state_folder import sign, state_folder, write_private

    state_folder()
    data = sign(_PURPOSE, {"path": str(file), "digest": powers.digest, "keys": powers.keys})
    write_private(_note_of(file), data)


def _note_of(file: Path) -> Path:
    from monarch.job.state_folder import state_path

    name = hashlib.sha256(os.fsencode(file)).hexdigest()[:32]
    return state_path() / "trusted" / f"{name}.json"


def _file_of(project: ProjectLike) -> Path:
    return Path(os.path.realpath(project.path))
