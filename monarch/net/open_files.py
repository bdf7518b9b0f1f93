"""How many files, and so connections, a process may have open at once."""

from __future__ import annotations

import contextlib
import resource

__all__ = ["allow_many"]

_MANY = (65_536, 10_240)  # macOS allows no more than the second, whatever it says


def allow_many() -> None:
    """Raise this process's own limit as far as the system lets it.

    Most systems begin with 1,024, for the sake of programs that use ``select``. A client of a
    thousand hosts has more connections than that, and no way to go on without one of them.
    """
    own, highest = resource.getrlimit(resource.RLIMIT_NOFILE)
    if own == resource.RLIM_INFINITY:
        return
    for many in _MANY:
        wanted = many if highest == resource.RLIM_INFINITY else min(many, highest)
        if own >= wanted:
            return
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, highest))
            return
