"""Bundles: monarch and its dependencies in one archive, for a host with a Python but no monarch.

The archive contains what its wheels would unpack to. For a host with the same kind of Python as
this one it is made of the packages that are installed here; for another kind, pip downloads their
wheels, into the store of ``sync --env``. monarch's own code is that which is imported here, also
from an editable checkout. An archive is named by its digest, and made once for each state of our
code and each kind of Python.
"""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import importlib.util
import io
import json
import re
import sys
import tarfile
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from monarch.errors import JobError
from monarch.runtime.workspace.packages.cache import cache_folder
from monarch.runtime.workspace.packages.environment import EnvironmentFailed, HostPython, build
from monarch.runtime.workspace.packages.lock_files import Needs
from monarch.runtime.workspace.packages.python_here import normalized, python_tag
from monarch.runtime.workspace.packages.wheels import BadWheel, unpack
from monarch.version import __version__
from monarch.whole_file import write_whole

_OURS = ("monarch", "monarch_sync", "monarch_reload", "monarch_recipes")
_NAME = "monarch-loop"
_INDEX = "index.json"
_MAX_STATES = 6
_making = threading.Lock()

# pip tests markers with its own version of Python; older versions need these too.
_OF_OLDER_PYTHONS = ("exceptiongroup", "typing-extensions")


class Bundle(NamedTuple):
    """An archive at ``path``; ``digest`` names the folder into which a host unpacks it."""

    digest: str
    path: Path


def known_bundles() -> dict[str, str]:
    """Return the digests of the bundles that exist for the current state of our code, by kind of
    Python."""
    return {str(tag): str(digest) for tag, digest in _index().get(_state(), {}).items()}


def _index() -> dict[str, dict[str, str]]:
    """Return the digests of all bundles, by state of our code and kind of Python."""
    try:
        index = json.loads((_folder() / _INDEX).read_bytes())
    except (OSError, ValueError):
        return {}
    return index if isinstance(index, dict) else {}


def bundle_line(request: Mapping[str, Any]) -> tuple[str, str]:
    """Return the line that answers a host's ``request`` for a bundle, and an error.

    The error is "" unless no bundle fits the host's Python; then the line has the error, too.
    """
    try:
        bundle = bundle_for(str(request["tag"]), list(map(str, request["platforms"])))
    except JobError as error:
        return f"bundle-error {json.dumps(str(error))}", str(error)
    data = base64.b64encode(bundle.path.read_bytes()).decode()
    return f"bundle {bundle.digest} {data}", ""


def bundle_for(tag: str, platforms: Sequence[str]) -> Bundle:
    """Return the bundle for Pythons with the tag ``tag`` that take wheels for ``platforms``.

    Raises ``JobError`` in one line if the packages cannot be found for it.
    """
    with _making:
        digest = known_bundles().get(tag, "")
        path = _folder() / f"{digest}.tar.gz"
        if not digest or not path.is_file():
            digest = _make(tag, platforms)
            path = _folder() / f"{digest}.tar.gz"
        return Bundle(digest, path)


def _folder() -> Path:
    return cache_folder() / "made"


@functools.cache
def _state() -> str:
    """Return the digest of our code as it is imported here; an edit of any file changes it."""
    digest = hashlib.sha256(f"{__version__} {_dependencies()}".encode())
    for name, path in _our_files():
        status = path.stat()
        digest.update(f"{name} {path} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _our_files() -> list[tuple[str, Path]]:
    files = []
    for package in _OURS:
        spec = importlib.util.find_spec(package)
        for root in spec.submodule_search_locations or () if spec is not None else ():
            for path in Path(root).rglob("*"):
                if path.is_file() and "__pycache__" not in path.parts:
                    files.append((f"{package}/{path.relative_to(root).as_posix()}", path))
    return sorted(files)


@functools.cache
def _dependencies() -> tuple[str, ...]:
    """Return our base dependencies, as the package's metadata lists them."""
    return tuple(x for x in metadata.requires(_NAME) or () if "extra ==" not in x)


def _make(tag: str, platforms: Sequence[str]) -> str:
    with tempfile.TemporaryDirectory(prefix="monarch-bundle-") as name:
        folder = Path(name)
        if tag == python_tag() and _takes_ours(platforms):
            files = list(_installed_files())
        else:
            _unpack_wheels(tag, platforms, folder)
            files = [(path.relative_to(folder).as_posix(), path) for path in folder.rglob("*")]
        archive = _archive(sorted(x for x in [*files, *_our_files()] if x[1].is_file()))
    digest = hashlib.sha256(archive).hexdigest()[:32]
    _folder().mkdir(parents=True, exist_ok=True)
    write_whole(_folder() / f"{digest}.tar.gz", archive)
    index = _index()
    # The oldest states are dropped: each edit of a checkout makes another one.
    digests = index.pop(_state(), {}) | {tag: digest}
    index = dict([*index.items(), (_state(), digests)][-_MAX_STATES:])
    write_whole(_folder() / _INDEX, json.dumps(index).encode())
    indexed = {digest for digests in index.values() for digest in digests.values()}
    for path in _folder().glob("*.tar.gz"):
        if path.name.removesuffix(".tar.gz") not in indexed:
            path.unlink(missing_ok=True)
    return digest


def _archive(files: Sequence[tuple[str, Path]]) -> bytes:
    """Return the archive's bytes, which depend on the files only, not on the process or the
    time."""
    out = io.BytesIO()
    about = f"Metadata-Version: 2.1\nName: {_NAME}\nVersion: {__version__}\n"
    entries = "[monarch.recipes]\n" + "".join(
        f"{point.name} = {point.value}\n"
        for point in metadata.entry_points(group="monarch.recipes")
    )
    info = f"{_NAME.replace('-', '_')}-{__version__}.dist-info"
    with (
        gzip.GzipFile(fileobj=out, mode="wb", compresslevel=6, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for name, data in (
            (f"{info}/METADATA", about.encode()),
            (f"{info}/entry_points.txt", entries.encode()),
            *((name, path.read_bytes()) for name, path in files),
        ):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o644
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def _takes_ours(platforms: Sequence[str]) -> bool:
    """Whether the packages that are installed here would also run on these platforms."""
    for distribution in _closure():
        wheel = distribution.read_text("WHEEL") or ""
        tags = re.findall(r"^Tag: (\S+)", wheel, re.MULTILINE)
        supported = {name for tag in tags for name in tag.rsplit("-", 1)[-1].split(".")}
        if supported.isdisjoint(["any", *platforms]):
            return False
    return True


@functools.cache
def _closure() -> tuple[metadata.Distribution, ...]:
    """Return the installed distributions that monarch needs, directly or not.

    Raises ``JobError`` if one is not installed.
    """
    distributions: dict[str, metadata.Distribution] = {}
    requirements = list(_dependencies())
    while requirements:
        requirement = requirements.pop()
        name = normalized(re.split(r"[^\w.-]", requirement, maxsplit=1)[0])
        if name in distributions or not _is_for(requirement, sys.version_info[:2]):
            continue
        try:
            distributions[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            if ";" in requirement:
                continue  # Its marker may be for another platform.
            raise JobError(
                f"the package {name} is not installed here, which a host needs"
            ) from None
        further = distributions[name].requires or ()
        requirements += [x for x in further if "extra ==" not in x]
    return tuple(distributions.values())


def _is_for(requirement: str, version: tuple[int, ...]) -> bool:
    """Whether a Python of this version needs the requirement, as far as its marker tests the
    version."""
    marker = re.search(r"python_version\s*(<|>=)\s*[\"'](\d+)\.(\d+)", requirement)
    if marker is None:
        return True
    bound = int(marker[2]), int(marker[3])
    return version < bound if marker[1] == "<" else version >= bound


def _installed_files() -> Iterator[tuple[str, Path]]:
    for distribution in _closure():
        for file in distribution.files or ():
            if ".." not in file.parts and "__pycache__" not in file.parts:
                yield file.as_posix(), Path(str(distribution.locate_file(file)))


def _unpack_wheels(tag: str, platforms: Sequence[str], folder: Path) -> None:
    match = re.match(r"cpython-(\d)(\d+) on (?:linux|macosx)", tag)
    if match is None:
        raise JobError(f"there are no wheels for {tag}: install monarch there, for a CPython")
    version = int(match[1]), int(match[2])
    packages = [x.partition(";")[0].strip() for x in _dependencies() if _is_for(x, version)]
    if version < (3, 13):
        packages += _OF_OLDER_PYTHONS
    try:
        needs = Needs((), tuple(packages), (), "")
        wheels = build(needs, [HostPython("it", tag, {}, platforms)], cache_folder())
        assert wheels is not None
        for wheel in wheels.glob("*.whl"):
            unpack(str(wheel), str(folder))
    except EnvironmentFailed as error:
        last = next((line for line in error.lines.splitlines()[::-1] if line.strip()), "")
        raise JobError(
            f"monarch's dependencies cannot be had as wheels for {tag}: {last or error.reason}"
        ) from None
    except (BadWheel, OSError) as error:
        raise JobError(f"a wheel for {tag} cannot be unpacked: {error}") from None
