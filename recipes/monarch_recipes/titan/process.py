"""A process that TorchTitan borrows: quiet while it trains there, and left as it was found.

TorchTitan expects a process of its own, that ends with the training. Here the next training
comes to the same one.
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

# Messages of torch and TorchTitan in every training here that call for no action.
_IDLE = (
    "model.safetensors.index.json not found",  # which only exports in that format miss
    "Pipeline Parallel loss is not visible",  # it arrives as a metric
    "Error running lspci",  # then it asks the driver
    "is being re-looped",  # the data, as ever
    "operations will be performed. This is suboptimal",  # in two meshes, of the gradient's norm
)
_LOGGERS = ("", "torch.distributed.tensor._redistribute")  # which those are said to
_KNOWN = (
    "FSDP2-wrapped module .* returned a view tensor",
    "Parallelize plan key .* could not be resolved",  # which is in another stage of the pipeline
    "DTensor .* may not have complete support on cpu",
    "'set_vital' is deprecated",
    "In CPU autocast, but the target dtype is not supported",
    "Set timeout is now only supported",
    "Detected an existing checkpoint in",
)
# Of its flight recorder: it warns of those that its last training in this process has set.
_VARIABLES = (
    "TORCH_FR_BUFFER_SIZE",
    "TORCH_FR_DUMP_TEMP_FILE",
    "TORCH_NCCL_DUMP_ON_TIMEOUT",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
)


@contextlib.contextmanager
def borrowed_process() -> Iterator[None]:
    """Within, TorchTitan may train in this process; after it, another training may."""
    _leave_group()  # of an actor that was not closed
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
        gc.enable()  # TorchTitan collects by the step, and disables it for good.


@contextlib.contextmanager
def meeting(device_number: int) -> Iterator[str]:
    """Choose the backend of TorchTitan's process groups while the block runs.

    It is gloo if ranks share a GPU, because NCCL refuses that. Yields the reason in words, or "" if
    nothing was changed. ``device_number`` is the number of this rank's GPU on its host.
    """
    rank, num_ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", device_number) if titan.device_type == "cuda" else None
    # Kept until the group is made: a file is removed when nobody has it open.
    store, _, _ = next(iter(dist.rendezvous("env://", rank, num_ranks)))
    backend, why = agree_on_backend(dist.PrefixStore("backend", store), rank, num_ranks, device)
    backends = dist.Backend.default_device_backend_map
    before = dict(backends)
    if device is not None and backend == ON_CPUS:
        backends["cuda"] = ON_CPUS
    try:
        yield why
    finally:
        backends.update(before)
        del store


def _leave_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _fair_num_threads() -> int:
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, len(os.sched_getaffinity(0)) // here)


@contextlib.contextmanager
def _quiet_torchtitan() -> Iterator[None]:
    """TorchTitan logs to the root logger what comes to the client as data; other warnings stay."""

    def is_worth_it(record: logging.LogRecord) -> bool:
        if "torchtitan" in record.pathname and record.levelno < logging.WARNING:
            return False
        return not any(text in record.getMessage() for text in _IDLE)

    # A filter sees the records of its own logger, not those of loggers below it.
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
