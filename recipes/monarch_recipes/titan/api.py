"""All that the titan recipe uses of TorchTitan; a next version may have other names for it."""

from __future__ import annotations

from importlib import metadata

from monarch.errors import JobError

from .cpu import import_torchtitan

PIN = "0.2.2"


def check_version(version: str) -> None:
    """Raise JobError for a TorchTitan that this recipe cannot drive."""
    if not version.startswith("0.2."):
        raise JobError(
            f"torchtitan {version} is installed, and the titan recipe needs {PIN}: later ones have "
            f"no TOML files. pip install torchtitan=={PIN}"
        )


check_version(metadata.version("torchtitan"))
import_torchtitan()

# ruff: noqa: E402 - these can be imported on a CPU only now
from torchtitan import config as titan_config
from torchtitan.components.dataloader import DataloaderExhaustedError
from torchtitan.components.metrics import BaseLogger
from torchtitan.components.metrics import _get_metrics_rank as get_metrics_rank
from torchtitan.config import ConfigManager, JobConfig
from torchtitan.distributed.utils import set_pg_timeouts
from torchtitan.hf_datasets.text_datasets import DATASETS
from torchtitan.protocols import train_spec
from torchtitan.tools.profiling import maybe_enable_memory_snapshot, maybe_enable_profiling
from torchtitan.tools.utils import device_type
from torchtitan.train import Trainer

__all__ = [
    "DATASETS",
    "PIN",
    "BaseLogger",
    "ConfigManager",
    "DataloaderExhaustedError",
    "JobConfig",
    "Trainer",
    "check_version",
    "device_type",
    "get_metrics_rank",
    "maybe_enable_memory_snapshot",
    "maybe_enable_profiling",
    "set_pg_timeouts",
    "titan_config",
    "train_spec",
]
