"""Sends a run's metrics to TensorBoard, Weights & Biases or MLflow.

Each needs its own library, which is imported if a config asks for it. The library's own environment
variables override our settings.
"""

from __future__ import annotations

import hashlib
import importlib
import netrc
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from monarch.config_file import ConfigError
from monarch.whole_file import OF_PEOPLE, write_whole

_PROJECT = "monarch"  # unless a key or the environment names another


@dataclass(frozen=True)
class LoggedRun:
    """A run in the form that loggers need: its folder, and its config by dotted key."""

    folder: Path
    config: Mapping[str, Any] = field(default_factory=dict)
    wandb_project: str | None = None
    wandb_entity: str | None = None

    @property
    def uid(self) -> str:
        """Return an id that stays the same when the run is resumed, and differs between runs."""
        digest = hashlib.blake2b(os.fsencode(self.folder.absolute()), digest_size=3).hexdigest()
        return f"{self.folder.name}-{digest}"


class TensorBoard:
    """Writes event files in ``tensorboard/`` of the run's folder, for ``tensorboard --logdir
    runs``."""

    def __init__(self, run: LoggedRun) -> None:
        library = _library("tensorboard", "torch.utils.tensorboard")
        folder = run.folder / "tensorboard"
        #: Where the figures are sent, for a person; each logger has this.
        self.place = f"tensorboard --logdir {folder}"
        self._writer = library.SummaryWriter(str(folder))

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class WandB:
    """Logs to a run of W&B, which is resumed with this one.

    It is online if a person is logged in, or ``WANDB_MODE`` says so; else offline, in ``wandb/`` of
    the run's folder, for ``wandb sync``.
    """

    def __init__(self, run: LoggedRun) -> None:
        library = _library("wandb", "wandb")
        settings: dict[str, Any] = {
            "project": run.wandb_project or _unless_set("WANDB_PROJECT", _PROJECT),
            "entity": run.wandb_entity,
            "name": _unless_set("WANDB_NAME", run.folder.name),
            "id": _unless_set("WANDB_RUN_ID", run.uid),
            "resume": _unless_set("WANDB_RESUME", "allow"),
            "dir": _unless_set("WANDB_DIR", str(run.folder)),
            "mode": _unless_set("WANDB_MODE", None if _is_logged_in() else "offline"),
            "config": dict(run.config),
        }
        self._run = library.init(
            **{name: value for name, value in settings.items() if value is not None},
            reinit="create_new",  # The runs of a sweep go on side by side.
            settings=library.Settings(silent=True),  # Its output would break the run's table.
        )
        url = getattr(self._run, "url", None)
        self.place = url or f"W&B, offline (no login was found): wandb sync {run.folder / 'wandb'}"

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


class MLflow:
    """Logs to a run of MLflow, which is resumed with this one.

    It is stored at ``MLFLOW_TRACKING_URI``, by default in ``mlflow/`` beside the runs, in the
    experiment of ``MLFLOW_EXPERIMENT_NAME``.
    """

    def __init__(self, run: LoggedRun) -> None:
        library = _library("mlflow", "mlflow")
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if not uri:
            uri = (run.folder.absolute().parent / "mlflow").as_uri()
        self._client = library.MlflowClient(tracking_uri=uri)
        self._uid = self._begin(run)
        self.place = f"MLflow, {uri}, run {self._uid}"

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        timestamp = int(time.time() * 1000)
        for name, value in values.items():
            self._client.log_metric(self._uid, name, float(value), timestamp=timestamp, step=step)

    def close(self) -> None:
        self._client.set_terminated(self._uid)

    def _begin(self, run: LoggedRun) -> str:
        uid_file = run.folder / "mlflow_run"
        if run_id := os.environ.get("MLFLOW_RUN_ID"):
            return run_id
        if uid_file.exists():
            return uid_file.read_text().strip()
        new_run = self._client.create_run(self._experiment(), run_name=run.folder.name)
        uid = str(new_run.info.run_id)
        write_whole(uid_file, uid + "\n", mode=OF_PEOPLE)
        for name, value in run.config.items():
            self._client.log_param(uid, name, value)
        return uid

    def _experiment(self) -> str:
        if experiment_id := os.environ.get("MLFLOW_EXPERIMENT_ID"):
            return experiment_id
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or _PROJECT
        experiment = self._client.get_experiment_by_name(name)
        return str(experiment.experiment_id if experiment else self._client.create_experiment(name))


Logger = TensorBoard | WandB | MLflow
LOGGERS: dict[str, Callable[[LoggedRun], Logger]] = {
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "mlflow": MLflow,
}


def check_loggers(names: Sequence[str]) -> None:
    """Raise ConfigError if there is no logger of such a name."""
    for name in names:
        if name not in LOGGERS:
            raise ConfigError(f"knows no {name!r}; there are {', '.join(LOGGERS)}", key="log_to")


def open_loggers(names: Sequence[str], run: LoggedRun) -> list[Logger]:
    """Return the loggers. Raises ConfigError if a library is not installed."""
    return [LOGGERS[name](run) for name in names]


def _unless_set(variable: str, value: str | None) -> str | None:
    """Return ``value``, unless the environment has ``variable``: then return ``None``, because the
    library reads the variable itself.
    """
    return None if os.environ.get(variable) else value


def _is_logged_in() -> bool:
    """Whether a W&B key is in the environment, or in the file in which ``wandb login`` stores
    it."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").hostname or ""
    try:
        return netrc.netrc(os.environ.get("NETRC") or None).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def _library(name: str, module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        extra = "mlflow" if name == "mlflow" else "loggers"
        raise ConfigError(
            f"asks for {name}, which is not installed: pip install 'monarch-loop[{extra}]'",
            key="log_to",
        ) from None
