"""Whether this machine has GPUs that torch uses: tests marked ``gpu`` need one."""

from __future__ import annotations

import functools
import os


@functools.cache
def why_no_gpu() -> str:
    """The reason why they are skipped; nothing where there is a GPU. It begins no CUDA: templates
    that are forked later must not have."""
    if not os.path.exists("/dev/nvidiactl"):
        return "this machine has no GPU of NVIDIA's (there is no /dev/nvidiactl)"
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    return "" if num_gpus() else "torch sees no GPU (CUDA_VISIBLE_DEVICES?)"


def num_gpus() -> int:
    """How many GPUs processes of this one see."""
    import torch

    before = os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK")
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    try:
        return int(torch.cuda.device_count())
    finally:
        if before is None:
            del os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"]
        else:
            os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = before
