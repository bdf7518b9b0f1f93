"""The place where a job's state is kept, for the path that names it.

A program names a state by a path in a folder, as `.monarch/job_state.json` in a project. The state
itself is a record in the person's state folder. The record belongs to that very folder on this
machine: its real path, its inode, and when it was made.

    projects/DIGEST/place.json                    the folder
    projects/DIGEST/current                       the name of the context in use
    projects/DIGEST/contexts/NAME/job_state.json  of .monarch/job_state.json, in that context
    projects/DIGEST/contexts/NAME/spec            the job that the context is for
    projects/DIGEST/files/NAME                    of another path in the folder: NAME

So a copy, an archive or a clone has no job, and a folder that was moved keeps its own. If the file
system does not record when a folder was made, a moved folder could be a new one with the same
inode, and has no job.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from monarch.errors import JobError
from monarch.job.state_folder import check_state_folder, state_folder, state_path, write_private

OUR_FOLDER = ".monarch"
STATE = "job_state.json"
CONTEXTS, CURRENT, DEFAULT_CONTEXT = "contexts", "current", "default"
SPEC = "spec"
_PLACE = "place.json"
_AT_FDCWD, _STATX_BTIME, _BTIME_AT = -100, 0x800, 80


class Place(NamedTuple):
    """The identity of a folder: its path, device, inode, and birth time in nanoseconds.

    ``birth`` is 0 if the file system does not record it; ``host`` is the machine's name, for
    people.
    """

    path: str
    device: int
    inode: int
    birth: int
    machine: str
    host: str

    @classmethod
    def of(cls, folder: Path) -> Place:
        """Return the place of a folder. Raises ``OSError`` if it does not exist."""
        path = os.path.realpath(folder)
        status = os.stat(path)
        return cls(
            path, status.st_dev, status.st_ino, _birth(path), _machine(), os.uname().nodename
        )

    @property
    def digest(self) -> str:
        """Return the name of the folder's records. It does not depend on the device, whose number
        may change when the machine is restarted."""
        text = json.dumps([self.machine, self.path, self.inode, self.birth])
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @property
    def machine_is_this(self) -> bool:
        """Whether the folder is on this machine."""
        return self.machine == _machine()

    def is_same_elsewhere(self, other: Place) -> bool:
        """Whether ``other`` is the same folder at another path: it was moved."""
        return bool(self.birth) and (
            (self.machine, self.device, self.inode, self.birth)
            == (other.machine, other.device, other.inode, other.birth)
        )


class Left(NamedTuple):
    """The record of a job that may be mistaken for this folder's.

    It is of another folder that was at this path, or of this folder on another machine.
    """

    record: Path
    place: Place


def record_of(path: str | os.PathLike[str]) -> Path:
    """Return the path of the state that ``path`` names, whether it exists or not.

    Raises ``JobError`` if others could write there; ``FileNotFoundError`` if the folder of ``path``
    does not exist.
    """
    check_state_folder()
    path = Path(path)
    if _is_record(path):
        return Path(os.path.abspath(path))
    records = project_records(_folder_of(path))
    if _is_of_project(path):
        return records / CONTEXTS / context_in_use(records) / STATE
    return records / "files" / path.name


def has_state(path: str | os.PathLike[str]) -> bool:
    """Whether the state that ``path`` names exists."""
    try:
        return record_of(path).exists()
    except (FileNotFoundError, NotADirectoryError):
        return False


def make_record_of(path: str | os.PathLike[str]) -> Path:
    """Return ``record_of(path)``, and make its folders."""
    path = Path(path)
    if not _is_record(path):
        _folder_of(path).mkdir(parents=True, exist_ok=True)
        make_project_records(_folder_of(path))
    record = record_of(path)
    record.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return record


def project_records(folder: Path) -> Path:
    """Return the folder with the records of a project's folder; it may not exist."""
    place = Place.of(folder)
    exact = _projects() / place.digest
    if exact.exists():
        return exact
    for records, earlier in _known_places():
        if place.is_same_elsewhere(earlier):
            if earlier.path != place.path and not _leads_to(earlier.path, place):
                with contextlib.suppress(OSError):
                    _write_place(records, place)
            return records
    return exact


def make_project_records(folder: Path) -> Path:
    """Return ``project_records(folder)``, and make it if needed."""
    state_folder()
    records = project_records(folder)
    if not (records / _PLACE).exists():
        _forget_gone()
        _write_place(records, Place.of(folder))
    return records


def context_in_use(records: Path) -> str:
    """Return the name of the context in use, from a project's ``records``."""
    with contextlib.suppress(OSError):
        return (records / CURRENT).read_text().strip() or DEFAULT_CONTEXT
    return DEFAULT_CONTEXT


def place_of(record: Path) -> Place | None:
    """Return the folder that a record belongs to; ``None`` if that is not known."""
    for folder in record.parents:
        if folder.parent == _projects():
            return _read_place(folder)
    return None


def path_for_people(record: Path) -> Path | None:
    """Return the path of a record's note in its project; ``None`` if the record has no project."""
    place = place_of(record)
    if place is None:
        return None
    if record.parent.name == "files":
        return Path(place.path) / record.name
    return Path(place.path) / OUR_FOLDER / STATE


def left_behind(folder: Path) -> Iterator[Left]:
    """Yield the jobs of other folders that may be this one.

    Such a folder was at this path before, or may be this one at an earlier path, or as another
    machine sees it.
    """
    try:
        place = Place.of(folder)
    except OSError:
        return
    own_records = project_records(folder)
    for records, earlier in _known_places():
        is_alike = earlier.path == place.path or (
            not (earlier.birth and place.birth)
            and (earlier.device, earlier.inode) == (place.device, place.inode)
        )
        if records != own_records and is_alike:
            for record in _states_among(records):
                yield Left(record, earlier)


def states_in(folder: Path) -> list[Path]:
    """Return the records of the jobs of a folder, of all contexts."""
    return _states_among(project_records(folder))


def _states_among(records: Path) -> list[Path]:
    return sorted(records.glob(f"{CONTEXTS}/*/{STATE}"))


def _is_of_project(path: Path) -> bool:
    """Whether a path is that of a project's state file, which commands in the project use."""
    return path.name == STATE and path.parent.name == OUR_FOLDER


def _folder_of(path: Path) -> Path:
    """Return the folder that a state belongs to. Raises ``JobError`` if ``path`` names no file."""
    if path.name in ("", ".", ".."):
        raise JobError(f"{path} is no path of a file")
    return path.parent.parent if _is_of_project(path) else path.parent


def _is_record(path: Path) -> bool:
    # Links are not followed: one in a project does not make its target a record.
    whole = Path(os.path.abspath(path))
    return whole.is_relative_to(_projects()) or whole.is_relative_to(os.path.realpath(_projects()))


def _projects() -> Path:
    return state_path() / "projects"


def _known_places() -> Iterator[tuple[Path, Place]]:
    for file in _projects().glob(f"*/{_PLACE}"):
        place = _read_place(file.parent)
        if place is not None:
            yield file.parent, place


def _read_place(folder: Path) -> Place | None:
    with contextlib.suppress(OSError, ValueError, TypeError):
        fields: Any = json.loads((folder / _PLACE).read_text())
        return Place(**fields)
    return None


def _write_place(folder: Path, place: Place) -> None:
    write_private(folder / _PLACE, json.dumps(place._asdict(), indent=2).encode())


def _leads_to(path: str, place: Place) -> bool:
    """Whether the folder is also at that path, for example by a mount."""
    try:
        status = os.stat(path)
    except OSError:
        return False
    return (status.st_dev, status.st_ino) == (place.device, place.inode)


def _forget_gone() -> None:
    """Remove the records of folders that are gone and have no job."""
    for folder, place in _known_places():
        if place.machine != _machine() or os.path.lexists(place.path):
            continue
        files = [path for path in folder.rglob("*") if not path.is_dir()]
        if any(path.name not in (_PLACE, CURRENT, SPEC, f"ended_{STATE}") for path in files):
            continue
        with contextlib.suppress(OSError):
            for path in files:
                path.unlink()
            for inner in sorted(folder.rglob("*"), reverse=True):
                inner.rmdir()
            folder.rmdir()


@functools.cache
def _machine() -> str:
    """Return the machine's own id, which survives a restart, or else its name."""
    with contextlib.suppress(OSError), open("/etc/machine-id", encoding="ascii") as file:
        return file.read().strip() or os.uname().nodename
    return os.uname().nodename


def _birth(path: str) -> int:
    """Return when a file was made, in nanoseconds; 0 if that is not recorded.

    A later file that gets the same inode has another birth time.
    """
    status = os.stat(path)
    birth = getattr(status, "st_birthtime", None)  # Linux has none.
    if birth is not None:
        return int(birth * 1e9)
    answer = ctypes.create_string_buffer(256)
    try:
        statx = ctypes.CDLL(None, use_errno=True).statx
    except (AttributeError, OSError):
        return 0
    if statx(_AT_FDCWD, os.fsencode(path), 0, _STATX_BTIME, answer) != 0:
        return 0
    (valid_fields,) = struct.unpack_from("=I", answer, 0)
    seconds, nanoseconds = struct.unpack_from("=qI", answer, _BTIME_AT)
    return int(seconds * 10**9 + nanoseconds) if valid_fields & _STATX_BTIME else 0
