"""The state of a machine and of a process, by the kernel and the GPUs' driver."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def process_state(pid: int) -> dict[str, Any]:
    """``state`` (the kernel's letter), ``cpu_seconds`` so far, ``rss`` in bytes, ``threads``;
    nothing for a process that is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(") ")[2].split()
    except OSError:
        return {}
    return {
        "state": fields[0],
        "cpu_seconds": (int(fields[11]) + int(fields[12])) / _TICKS,
        "threads": int(fields[17]),
        "rss": int(fields[21]) * _PAGE,
    }


def machine_state() -> dict[str, Any]:
    """``cpu_busy`` and ``cpu_total`` in seconds since boot, ``num_cpus``, ``mem_used`` and
    ``mem_total`` in bytes, ``gpus``. What cannot be found is left out."""
    return {"num_cpus": os.cpu_count() or 1, "gpus": _gpus(), **_cpu(), **_memory()}


def _cpu() -> dict[str, float]:
    try:
        with open("/proc/stat", encoding="ascii") as file:
            times = [int(field) for field in file.readline().split()[1:9]]
    except (OSError, ValueError):
        return {}
    idle = times[3] + times[4]
    return {"cpu_busy": (sum(times) - idle) / _TICKS, "cpu_total": sum(times) / _TICKS}


def _memory() -> dict[str, int]:
    found: dict[str, int] = {}
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                name, _, value = line.partition(":")
                found[name] = int(value.split()[0]) * 1024
        return {
            "mem_total": found["MemTotal"],
            "mem_used": found["MemTotal"] - found["MemAvailable"],
        }
    except (OSError, ValueError, KeyError):
        return {}


@cache
def _nvml() -> Any:
    """NVIDIA's library, where it is installed and there is a driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:
        return None
    return pynvml


def _gpus() -> list[dict[str, Any]]:
    nvml = _nvml()
    if nvml is None:
        return []
    found = []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            gpu = nvml.nvmlDeviceGetHandleByIndex(index)
            memory = nvml.nvmlDeviceGetMemoryInfo(gpu)
            busy = nvml.nvmlDeviceGetUtilizationRates(gpu).gpu
            found.append(
                {"index": index, "busy": busy, "mem_used": memory.used, "mem_total": memory.total}
            )
        except Exception:
            found.append({"index": index})
    return found
