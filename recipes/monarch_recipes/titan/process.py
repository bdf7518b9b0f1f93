"""Prepares a process for a training of TorchTitan, and restores it afterwards.

TorchTitan expects a process of its own that ends with the training. Here the next training uses the
same process. TorchTitan's log messages are hidden meanwhile.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import warnings
from collections.abc import Iterator

import torch
import torch.distributed as dist

from monarch.tools.backends import ON_CPUS, agree_on_backend

from .versions import titan

# Messages of torch and TorchTitan that come in every training and need no action.
_IDLE = (
    "model.safetensors.index.json not found",  # needed only for exports in that format
    "Pipeline Parallel loss is not visible",  # the loss arrives as a metric
    "Error running lspci",  # TorchTitan then asks the driver
    "is being re-looped",  # the data, at each new epoch
    "operations will be performed. This is suboptimal",  # in two meshes, of the gradient's norm
)
_LOGGERS = ("", "torch.distributed.tensor._redistribute")  # the loggers of these messages
_KNOWN = (
    "FSDP2-wrapped module .* returned a view tensor",
    "Parallelize plan key .* could not be resolved",  # which is in another stage of the pipeline
    "DTensor .* may not have complete support on cpu",
    "'set_vital' is deprecated",
    "In CPU autocast, but the target dtype is not supported",
    "Set timeout is now only supported",
    "Detected an existing checkpoint in",
)
# Variables of torch's flight recorder. TorchTitan sets them, and warns if they are set already.
_VARIABLES = (
    "TORCH_FR_BUFFER_SIZE",
    "TORCH_FR_DUMP_TEMP_FILE",
    "TORCH_NCCL_DUMP_ON_TIMEOUT",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
)


@contextlib.contextmanager
def borrowed_process() -> Iterator[None]:
    """Prepare this process for a training within the block, and restore it for another one
    afterwards.
    """
    _leave_group()  # A training that was not closed leaves one.
    for name in _VARIABLES:
        os.environ.pop(name, None)
    if titan.device_type == "cpu":
        torch.set_num_threads(_fair_num_threads())
    try:
        with _quiet_torchtitan():
            yield
    finally:
        _leave_group()
        torch.use_deterministic_algorithms(False)
        gc.enable()  # TorchTitan disables it, and collects after steps itself.


@contextlib.contextmanager
def meeting(device_number: int) -> Iterator[str]:
    """Choose the backend of TorchTitan's process groups while the block runs.

    It is gloo if ranks share a GPU, because NCCL refuses that. Yields the reason in words, or "" if
    nothing was changed. ``device_number`` is the number of this rank's GPU on its host.
    """
    rank, num_ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", device_number) if titan.device_type == "cuda" else None
    # Kept until the group is made: the file of the store is removed when nobody has it open.
    store, _, _ = next(iter(dist.rendezvous("env://", rank, num_ranks)))
    backend, why = agree_on_backend(dist.PrefixStore("backend", store), rank, num_ranks, device)
    backends = dist.Backend.default_device_backend_map
    old_backends = dict(backends)
    if device is not None and backend == ON_CPUS:
        backends["cuda"] = ON_CPUS
    try:
        yield why
    finally:
        backends.update(old_backends)
        del store


def _leave_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _fair_num_threads() -> int:
    num_ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, len(os.sched_getaffinity(0)) // num_ranks_here)


@contextlib.contextmanager
def _quiet_torchtitan() -> Iterator[None]:
    """Hide TorchTitan's log messages within the block; their content reaches the client as metrics.

    Other warnings stay.
    """

    def is_worth_it(record: logging.LogRecord) -> bool:
        if "torchtitan" in record.pathname and record.levelno < logging.WARNING:
            return False
        return not any(text in record.getMessage() for text in _IDLE)

    # A filter sees only the records of its own logger, not those of child loggers.
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    for logger in loggers:
        logger.addFilter(is_worth_it)
    try:
        with warnings.catch_warnings():
            for message in _KNOWN:
                warnings.filterwarnings("ignore", message, UserWarning)
            yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_worth_it)
