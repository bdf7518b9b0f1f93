"""A person's own folder for trusted data: the state of jobs, and which projects are trusted.

It is ``$XDG_STATE_HOME/monarch``, by default ``~/.local/state/monarch``. A project's folder may
come from a stranger, with any files; this one does not. In addition its files are signed, with a
key that never leaves the folder, so that data from elsewhere is refused.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from monarch.errors import JobError
from monarch.whole_file import write_whole

_KEY = "key"
_KEY_BYTES = 32
SIGNATURE = "signature"


class NotSigned(JobError):
    """The data was not written by this user's monarch on this machine, or was changed since."""


def state_path() -> Path:
    """Return the path of the folder with this user's states of jobs; it may not exist.

    Raises ``JobError`` if there is no home folder.
    """
    # A relative path would depend on the folder in which the command is called.
    base = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".local", "state")
    if not os.path.isabs(base):
        raise JobError(
            "there is no home folder to keep the state of jobs in: name a folder of yours with "
            "XDG_STATE_HOME"
        )
    return Path(base) / "monarch"


def state_folder() -> Path:
    """Return the folder with this user's states of jobs, made if needed.

    Raises ``JobError`` if it cannot be made, or others could write into it.
    """
    path = state_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
    except OSError as error:
        raise JobError(
            f"the state of jobs cannot be kept in {path}: {error.strerror}. Name another folder "
            "of yours with XDG_STATE_HOME"
        ) from None
    check_state_folder()
    return path


def check_state_folder() -> None:
    """Raise ``JobError`` if the folder with the states of jobs is not safe.

    It is safe if it does not exist, or only its owner, this user, can write into it.
    """
    path = state_path()
    if path.is_symlink() and path.lstat().st_uid != os.getuid():
        raise JobError(f"{path} is a link that another user has made; remove it")
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return
    if not stat.S_ISDIR(status.st_mode):
        raise JobError(f"{path} should be the folder with the state of jobs, and is a file")
    if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise JobError(
            f"{path} holds the state of jobs, so it must belong to you, and no one else may write "
            f"into it; it has mode {stat.S_IMODE(status.st_mode):04o} and belongs to user "
            f"{status.st_uid}. Run `chmod 700 {path}` if all that is in it is yours"
        )


def write_private(path: Path, data: bytes) -> None:
    """Write a file of mode 0600, atomically. An ``OSError`` names ``path``."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole(path, data)


def read_private(path: Path) -> bytes:
    """Return the content of a file that only this user could have written.

    Raises ``FileNotFoundError`` if there is no such file, and ``JobError`` if others could have
    written it.
    """
    check_state_folder()
    with open(path, "rb") as file:
        # The status of the open file: another one may be put at the path meanwhile.
        status = os.fstat(file.fileno())
        data = file.read()
    if status.st_uid != os.getuid() or status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise JobError(
            f"{path} holds a secret and must belong to you with mode 0600; it has mode "
            f"{stat.S_IMODE(status.st_mode):04o}. Run `chmod 600 {path}` if you trust it"
        )
    return data


def sign(purpose: str, fields: Mapping[str, Any]) -> bytes:
    """Return the fields as signed JSON. A signature for one ``purpose`` is invalid for another."""
    plain = json.loads(json.dumps(fields))  # as a reader gets them: tuples become lists
    signature = _signature(_made_key(), purpose, plain)
    return json.dumps(plain | {SIGNATURE: signature}, indent=2).encode()


def verified(purpose: str, data: bytes) -> dict[str, Any]:
    """Return the fields that were signed.

    Raises ``ValueError`` for data that is no JSON object, and ``NotSigned`` for data that this
    user's monarch has not signed.
    """
    try:
        fields = json.loads(data)
    except RecursionError:
        raise ValueError("nested too deep") from None
    if not isinstance(fields, dict):
        raise ValueError("not an object")
    signature, key = fields.pop(SIGNATURE, None), _known_key()
    expected = "" if key is None else _signature(key, purpose, fields)
    if not expected or not hmac.compare_digest(str(signature).encode(), expected.encode()):
        raise NotSigned(
            "it was not written by your monarch on this machine, or was changed since, so it has "
            "no effect"
        )
    return fields


def _signature(key: bytes, purpose: str, fields: Mapping[str, Any]) -> str:
    text = json.dumps([purpose, fields], sort_keys=True, separators=(",", ":"))
    return hmac.digest(key, text.encode(), "sha256").hex()


def _known_key() -> bytes | None:
    path = state_path() / _KEY
    try:
        key = read_private(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if len(key) != _KEY_BYTES:
        raise JobError(
            f"{path} is damaged. Remove it; jobs that are up can then only be ended by hand"
        )
    return key


def _made_key() -> bytes:
    key = _known_key()
    if key is not None:
        return key
    folder = state_folder()
    path, new_path = folder / _KEY, folder / f".{_KEY}.{secrets.token_hex(8)}"
    write_private(new_path, secrets.token_bytes(_KEY_BYTES))
    try:
        os.link(new_path, path)  # Two programs at once both use the key of the first.
    except FileExistsError:
        pass
    except OSError:  # The file system has no hard links.
        if not path.exists():
            os.replace(new_path, path)
    new_path.unlink(missing_ok=True)
    key = _known_key()
    assert key is not None
    return key
