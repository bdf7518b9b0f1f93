"""Environment variables across ranks: which values are hidden, when a new value takes effect, how
ranks differ.

Pure.
"""

from __future__ import annotations

import fnmatch
import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from monarch.core.grouping import SameAnswer, group

_SECRET = re.compile(
    r"TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|(^|_)(API)?KEYS?($|_)|(^|_)PWD?$|_AUTH$",
    re.IGNORECASE,
)
_PLACES = ("PWD", "OLDPWD")
_WITH_PASSWORD = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s:@]*:[^/\s@]+@", re.IGNORECASE)

UNSET = "(not set)"


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a variable's name matches one of the patterns, such as ``NCCL_*`` or ``HOME``.

    Without patterns, every name matches.
    """
    wanted = list(patterns)
    return not wanted or any(fnmatch.fnmatchcase(name, pattern) for pattern in wanted)


def is_secret(name: str, value: str) -> bool:
    """Return whether a value must not be shown: because of its variable's name, or a password in
    its URL."""
    if name in _PLACES:
        return False
    return bool(_SECRET.search(name) or _WITH_PASSWORD.search(value))


def hidden(name: str, value: str, salt: str) -> str:
    """Return the value for display; a secret becomes a short hash. Equal secrets look equal under
    the same ``salt``."""
    if not is_secret(name, value):
        return value
    digest = hashlib.sha256(f"{salt}\0{value}".encode("utf-8", "surrogateescape")).hexdigest()
    return f"(hidden, {digest[:6]})"


_ONLY_NEW = re.compile(
    r"CUDA_VISIBLE_DEVICES|HIP_VISIBLE_DEVICES|(OMP|MKL|OPENBLAS|NUMEXPR)_NUM_THREADS|LD_.*|"
    r"PYTHON.*|MALLOC_.*|CUDA_(MODULE_LOADING|DEVICE_ORDER)|PYTORCH_.*ALLOC_CONF|PATH"
)
_NEXT_COMMUNICATOR = re.compile(r"(TORCH_)?(NCCL|GLOO|UCX)_.*|TORCH_FR_.*")


def counts_when(name: str) -> str:
    """Return a text that says when a new value takes effect in a running process."""
    if _ONLY_NEW.fullmatch(name):
        return "counts for new procs only: it is read when a process starts"
    if _NEXT_COMMUNICATOR.fullmatch(name):
        return "counts for the next communicator (init_process_group, new_group)"
    return "counts from now on"


class EnvRow(NamedTuple):
    """One variable, and its values with the ranks that have them, the most common first."""

    name: str
    values: tuple[SameAnswer[str], ...]

    @property
    def differs(self) -> bool:
        return len(self.values) > 1


def rows_of(env: Mapping[int, Mapping[str, str]], names: Iterable[str] = ()) -> list[EnvRow]:
    """Turn environments by rank into rows. Each of ``names`` has a row even if no rank sets it."""
    all_names = sorted({*names, *(name for variables in env.values() for name in variables)})
    rows = []
    for name in all_names:
        values = {rank: variables.get(name, UNSET) for rank, variables in env.items()}
        rows.append(EnvRow(name, tuple(group(values))))
    return rows


_WIDEST_NAME = 28
_WIDEST_VALUE = 48


def lines_of(rows: Iterable[EnvRow], notes: Mapping[str, str] | None = None) -> list[str]:
    """Return lines of text, one for each value of a variable, such as ``NCCL_SOCKET_IFNAME eth0
    ranks 0-6``. A value that only few of the ranks have is marked as the odd one out.
    """
    shown = list(rows)
    name_width = min(_WIDEST_NAME, max([len(row.name) for row in shown], default=0))
    values = [same.answer for row in shown for same in row.values]
    width = min(_WIDEST_VALUE, max([len(value) for value in values], default=0))
    lines = []
    for row in shown:
        for index, same in enumerate(row.values):
            name = row.name if index == 0 else ""
            mark = "    <- odd one out" if same.is_odd else ""
            note = (notes or {}).get(row.name, "") if index == 0 else ""
            note = f"    ({note})" if note else ""
            line = f"{name:<{name_width}}   {same.answer:<{width}}   {same.who}{mark}{note}"
            lines.append(line.rstrip())
    return lines
