"""The job's secret, on its way from the process that started this one."""

from __future__ import annotations

import ctypes
import functools
import os

from monarch.wire.keys import SECRET_BYTES

_TEXT, _DESCRIPTOR = SECRET_VARIABLES = ("MONARCH_JOB_SECRET", "MONARCH_JOB_SECRET_FD")


@functools.cache
def take_secret() -> bytes | None:
    """Return the job's secret, from the descriptor or the variable that the launcher passed.

    It is removed from the environment, so that neither procs nor their children can read it there,
    nor ``/proc/PID/environ`` show it; later calls return the kept value. Raises ``ValueError`` for
    an invalid secret.
    """
    _erase(_TEXT)
    fd = os.environ.pop(_DESCRIPTOR, None)
    text = os.environ.pop(_TEXT, None)
    if fd is not None:
        with os.fdopen(int(fd)) as file:
            text = file.read()
    if not text:
        return None
    try:
        secret = bytes.fromhex(text.strip())
    except ValueError:
        secret = b""
    if len(secret) != SECRET_BYTES:
        # Without the text: this ends up in logs.
        raise ValueError(
            f"{_TEXT} must be {2 * SECRET_BYTES} hexadecimal digits; make them with "
            f"`openssl rand -hex {SECRET_BYTES}`"
        )
    return secret


def _erase(name: str) -> None:
    """Overwrite an environment variable's value with "x" where ``/proc/PID/environ`` shows it.

    Removing the variable from ``os.environ`` would leave the value there.
    """
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    value = libc.getenv(name.encode())
    if value:
        ctypes.memset(value, ord("x"), len(ctypes.string_at(value)))
