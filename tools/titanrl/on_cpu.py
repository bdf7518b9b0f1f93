"""Has torchtitan compute on the CPU where there is no accelerator; there, it takes CUDA for given.

torch calls this as it is imported, in each process that has this folder on its path, as it calls
backends for other devices: ``on_cpu-0.dist-info`` names it.
"""

from __future__ import annotations

import torch


def name_the_cpu() -> None:
    find = torch._utils._get_available_device_type
    torch._utils._get_available_device_type = lambda: find() or "cpu"
