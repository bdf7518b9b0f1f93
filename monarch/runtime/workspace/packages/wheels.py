"""Wheels that are pushed with a workspace: which Python needs which, and what is in them.

They are in one folder, beside a list of the wheels that each Python needs. A wheel has its digest
in its file name, so a wheel that was built again is another file.
"""

from __future__ import annotations

import os
import stat
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

import msgspec

from monarch_sync.content.stamps import digest_of

FOLDER = "__environment__"
"""Where the wheels of a workspace land."""

LIST = "wheels.json"

_IMPORTED = ("purelib", "platlib", "data")
_DIGITS = 12


class BadWheel(Exception):
    """A wheel that is damaged, or has a file that would be unpacked outside the target folder."""


class Wheel(msgspec.Struct, frozen=True):
    """A wheel. ``file``: its name in the folder. ``digest``: of its content, in hex."""

    file: str
    digest: str


def read_list(file: str | Path) -> dict[str, list[Wheel]]:
    """Return which Pythons need which wheels, by `python_tag`; empty without a list."""
    try:
        return msgspec.json.decode(Path(file).read_bytes(), type=dict[str, list[Wheel]])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return {}


def collect(by_tag: Mapping[str, Path], folder: Path) -> None:
    """Move wheels into one folder, and write the list of them there.

    ``by_tag`` has a folder of wheels for each Python tag.
    """
    wanted: dict[str, list[Wheel]] = {}
    for tag, built in sorted(by_tag.items()):
        listed = wanted[tag] = []
        for path in sorted(built.glob("*.whl")):
            digest = (digest_of(str(path)) or b"").hex()
            file = f"{digest[:_DIGITS]}-{path.name}"
            path.rename(folder / file)
            listed.append(Wheel(file, digest))
    (folder / LIST).write_bytes(msgspec.json.format(msgspec.json.encode(wanted)))


def unpack(wheel: str, target: str) -> dict[str, int]:
    """Unpack the importable files of a wheel into a folder, read-only; return their checksums by
    path.

    The wheel's scripts are left out, because they name the Python of another machine. Raises
    ``BadWheel``, ``OSError``.
    """
    written: dict[str, int] = {}
    try:
        with zipfile.ZipFile(wheel) as archive:
            for info, relative in _members(archive):
                path = os.path.join(target, relative)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                if os.path.lexists(path):
                    os.unlink(path)  # Several wheels bring it; the last one wins.
                is_executable = bool(info.external_attr >> 16 & stat.S_IXUSR)
                # Other environments may have the same file under another name.
                fd = os.open(
                    path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o555 if is_executable else 0o444
                )
                with os.fdopen(fd, "wb") as file:
                    file.write(archive.read(info))
                written[relative] = info.CRC
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise BadWheel(f"it is damaged: {error}") from None
    return written


def _members(archive: zipfile.ZipFile) -> Iterator[tuple[zipfile.ZipInfo, str]]:
    """Yield the files to unpack, each with its path below the target."""
    for info in archive.infolist():
        if info.is_dir():
            continue
        parts = PurePosixPath(info.filename).parts
        if not parts or ".." in parts or parts[0] == "/" or "\\" in info.filename:
            raise BadWheel(f"it has a file that leads out of it: {info.filename!r}")
        if parts[0].endswith(".data"):
            if len(parts) < 3 or parts[1] not in _IMPORTED:
                continue
            parts = parts[2:]
        yield info, "/".join(parts)
