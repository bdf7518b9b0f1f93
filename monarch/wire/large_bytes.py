"""Make large ``bytes`` in one copy, in large memory pages if the system has them.

The system provides the memory of a large new object only at the first write, page by page, which
takes longer than the copy. Pages of 2 MiB need 500 times fewer such steps.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable

_LARGE_BYTES = 8 * 2**20
_HEADER_BYTES = sys.getsizeof(b"") - 1
_PAGE = mmap.PAGESIZE


def as_bytes(view: memoryview) -> bytes:
    """Return ``bytes(view)``, faster for many MiB; ``view`` must be contiguous.

    If ``view`` shows all of a ``bytes`` object, that object is returned, not a copy.
    """
    whole = view.obj
    if type(whole) is bytes and len(whole) == len(view):
        return whole
    if len(view) < _LARGE_BYTES or _madvise is None or view.readonly:
        return bytes(view)
    size = len(view)
    copied: bytes = _new_bytes(None, size)
    address = id(copied) + _HEADER_BYTES
    start = (address + _PAGE - 1) & -_PAGE
    _madvise(start, (address + size - start) & -_PAGE, mmap.MADV_HUGEPAGE)
    # No other code has seen the object yet: filling it is what the C API allows at this point.
    ctypes.memmove(address, ctypes.addressof(ctypes.c_ubyte.from_buffer(view)), size)
    return copied


def _find_madvise() -> Callable[[int, int, int], object] | None:
    if not hasattr(mmap, "MADV_HUGEPAGE") or sys.implementation.name != "cpython":
        return None
    try:
        madvise = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return None
    madvise.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
    return madvise


_madvise = _find_madvise()
_new_bytes = ctypes.pythonapi.PyBytes_FromStringAndSize
_new_bytes.restype = ctypes.py_object
_new_bytes.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t]
