"""Has torchtitan compute on the CPU if there is no accelerator; torchtitan alone would assume CUDA.

``on_cpu-0.dist-info`` registers it as a backend of torch for other devices. So torch calls it on
import, in each process that has this folder on its path.
"""

from __future__ import annotations

import torch


def name_the_cpu() -> None:
    find = torch._utils._get_available_device_type
    torch._utils._get_available_device_type = lambda: find() or "cpu"
