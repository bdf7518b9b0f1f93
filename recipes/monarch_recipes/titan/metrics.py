"""The numbers that TorchTitan computes, under the names that all recipes have for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .api import BaseLogger, device_type

_NAMES = {
    "loss_metrics/global_avg_loss": "loss",
    "loss_metrics/global_max_loss": "max_loss",
    "grad_norm": "grad_norm",
    "lr": "learning_rate",
    "throughput(tps)": "tokens_per_second",
    "tflops": "tflops_per_rank",
    "mfu(%)": "mfu_percent",
    "memory/max_reserved(GiB)": "memory_gib",
    "time_metrics/data_loading(%)": "data_loading_percent",
    "n_tokens_seen": "tokens_seen",
    "validation_metrics/loss": "validation_loss",
}
_TITANS = ("time_metrics/", "memory/", "validation_metrics/")  # of these, only the ones above


class MetricsBuffer(BaseLogger):  # type: ignore[misc]
    """Takes every number, on its way to TensorBoard or nowhere, until it is taken from here."""

    def __init__(self, inner: Any, world_size: int) -> None:
        self._inner = inner
        self._world_size = world_size
        self._values: dict[str, float] = {}

    def take(self) -> dict[str, float]:
        """Those that were logged since the last time."""
        taken, self._values = self._values, {}
        return taken

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        for theirs, value in metrics.items():
            ours = _NAMES.get(theirs)
            if ours is None:
                if theirs.startswith(_TITANS):
                    continue
                ours = theirs
            number = float(value)
            if ours == "tokens_per_second":
                number *= self._world_size  # theirs is a rank's
            if ours != "mfu_percent" or device_type != "cpu":
                self._values[ours] = number
        self._inner.log(metrics, step)

    def close(self) -> None:
        self._inner.close()
