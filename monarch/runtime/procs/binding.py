"""Which CPUs and which memory a process may use.

Options are named as by numactl and taskset: ``cpus`` and ``physcpubind`` list CPUs, ``cpunodebind``
memory nodes for their CPUs, ``membind`` memory nodes for their memory. They are applied by system
calls, so neither of the two programs need be installed.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Mapping

_CPU_OPTIONS = ("cpus", "physcpubind", "cpunodebind")
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
_MPOL_BIND = 2
_NODES = "/sys/devices/system/node"


def check_binding(options: Mapping[str, str]) -> None:
    """Raise ``ValueError`` for options that no machine could apply."""
    unknown = sorted(set(options) - {*_CPU_OPTIONS, "membind"})
    if unknown:
        raise ValueError(
            f"unknown proc_bind options {unknown}; known: {', '.join(_CPU_OPTIONS)}, membind"
        )
    for text in options.values():
        _parse_cpu_list(text)


def bind_process(options: Mapping[str, str]) -> None:
    """Bind this process, which must still have one thread, and the threads that it starts later.

    Raises ``ValueError`` for CPUs or nodes that this machine does not have.
    """
    cpus: frozenset[int] | None = None
    for name in _CPU_OPTIONS:
        if name in options:
            named = _parse_cpu_list(options[name])
            chosen = _cpus_of(named) if name == "cpunodebind" else named
            cpus = chosen if cpus is None else cpus & chosen
    if cpus is not None:
        try:
            os.sched_setaffinity(0, cpus)
        except OSError as error:
            raise ValueError(f"proc_bind {dict(options)} names no CPU of this machine") from error
    if "membind" in options:
        _bind_memory(_parse_cpu_list(options["membind"]))


def _cpus_of(nodes: frozenset[int]) -> frozenset[int]:
    cpus: frozenset[int] = frozenset()
    for node in nodes:
        try:
            with open(f"{_NODES}/node{node}/cpulist", encoding="ascii") as file:
                text = file.read().strip()
        except OSError:
            raise ValueError(f"proc_bind: this machine has no memory node {node}") from None
        if text:
            cpus |= _parse_cpu_list(text)
    return cpus


def _bind_memory(nodes: frozenset[int]) -> None:
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is None:
        raise ValueError(f"proc_bind: membind is not known on {platform.machine()}")
    num_bits = 1024
    mask = (ctypes.c_ubyte * (num_bits // 8))()
    for node in nodes:
        if node >= num_bits:
            raise ValueError(f"proc_bind: this machine has no memory node {node}")
        mask[node // 8] |= 1 << (node % 8)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, _MPOL_BIND, mask, num_bits + 1) != 0:
        why = os.strerror(ctypes.get_errno())
        raise ValueError(f"proc_bind: memory cannot be bound to nodes {sorted(nodes)} here: {why}")


def _parse_cpu_list(text: str) -> frozenset[int]:
    """Return the numbers in a list such as ``0-3,8,10-14:2``, as taskset and numactl read it.

    Raises ``ValueError`` for any other text.
    """
    numbers: set[int] = set()
    for part in text.split(","):
        span, _, step = part.strip().partition(":")
        first, dash, last = span.partition("-")
        try:
            low, high = int(first), int(last) if dash else int(first)
            picked = range(low, high + 1, int(step) if step else 1)
        except ValueError:
            picked = range(0)
        if not picked or picked[0] < 0:
            raise ValueError(f"{text!r} is not a list of numbers and ranges such as '0-3,8'")
        numbers.update(picked)
    return frozenset(numbers)
