"""The state of a machine and of a process, from the kernel and the GPUs' driver."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def process_state(pid: int) -> dict[str, Any]:
    """Return ``state`` (the kernel's letter), ``cpu_seconds`` so far, ``rss`` in bytes,
    ``threads``; empty if the process is gone.
    """
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
    """Return ``cpu_busy`` and ``cpu_total`` in seconds since boot, ``num_cpus``, ``mem_used`` and
    ``mem_total`` in bytes, ``gpus``, and ``num_gpus``, which is how many of them a program that
    starts here can use. Values that cannot be found are left out."""
    return {
        "num_cpus": os.cpu_count() or 1,
        "gpus": _gpus(),
        "num_gpus": num_visible_gpus(os.environ),
        **_cpu(),
        **_memory(),
    }


def num_visible_gpus(environment: Mapping[str, str]) -> int:
    """Return how many GPUs a program with this environment can use, without initializing CUDA.

    ``CUDA_VISIBLE_DEVICES`` is read as CUDA reads it: up to the first missing device, by number, or
    by UUID or its prefix. A device that is named twice leaves none. Of parts of GPUs (MIG) a
    process sees one, however many are named.
    """
    nvml = _nvml()
    if nvml is None:
        return 0
    num_there = nvml.nvmlDeviceGetCount()
    wanted = environment.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return int(num_there)
    names = [word.strip() for word in wanted.split(",")]
    if names[0].startswith("MIG-"):
        return 1
    uuids = _uuids(nvml, num_there) if names[0].startswith("GPU-") else []
    numbers: set[int] = set()
    for name in names:
        number = _number_of(name, uuids, num_there)
        if number is None:
            break
        if number in numbers:
            return 0
        numbers.add(number)
    return len(numbers)


def _number_of(name: str, uuids: Sequence[str], num_there: int) -> int | None:
    """Return the number of the device that an entry of ``CUDA_VISIBLE_DEVICES`` names.

    With ``uuids``, those of all devices, the entry is a UUID or its prefix; else a number. None if
    it names no device, or several.
    """
    if uuids:
        numbers = [n for n, uuid in enumerate(uuids) if name and uuid.startswith(name)]
        return numbers[0] if len(numbers) == 1 else None
    # Whatever comes after the digits does not count.
    digits = re.match(r"\d+", name)
    number = int(digits[0]) if digits else num_there
    return number if number < num_there else None


def _uuids(nvml: Any, num_gpus: int) -> list[str]:
    uuids = [nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(n)) for n in range(num_gpus)]
    return [uuid.decode() if isinstance(uuid, bytes) else uuid for uuid in uuids]


def _cpu() -> dict[str, float]:
    try:
        with open("/proc/stat", encoding="ascii") as file:
            times = [int(field) for field in file.readline().split()[1:9]]
    except (OSError, ValueError):
        return {}
    idle = times[3] + times[4]
    return {"cpu_busy": (sum(times) - idle) / _TICKS, "cpu_total": sum(times) / _TICKS}


def _memory() -> dict[str, int]:
    sizes: dict[str, int] = {}
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                name, _, value = line.partition(":")
                sizes[name] = int(value.split()[0]) * 1024
        return {
            "mem_total": sizes["MemTotal"],
            "mem_used": sizes["MemTotal"] - sizes["MemAvailable"],
        }
    except (OSError, ValueError, KeyError):
        return {}


@cache
def _nvml() -> Any:
    """Return NVIDIA's library, if it is installed and there is a driver; else None."""
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
    gpus = []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            gpu = nvml.nvmlDeviceGetHandleByIndex(index)
            memory = nvml.nvmlDeviceGetMemoryInfo(gpu)
            busy = nvml.nvmlDeviceGetUtilizationRates(gpu).gpu
            gpus.append(
                {"index": index, "busy": busy, "mem_used": memory.used, "mem_total": memory.total}
            )
        except Exception:
            gpus.append({"index": index})
    return gpus
