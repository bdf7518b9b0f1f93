"""Weights & Biases and MLflow, by modules that keep the contract of theirs."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monarch.runs.record.loggers import LoggedRun, open_loggers
from monarch.runs.record.record import LineDisplay, Record

VARIABLES = (
    "WANDB_MODE", "WANDB_API_KEY", "WANDB_PROJECT", "WANDB_ENTITY", "WANDB_NAME", "WANDB_RUN_ID",
    "WANDB_DIR", "WANDB_RESUME", "WANDB_BASE_URL", "MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID",
    "MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID",
)  # fmt: skip


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


class FakeWandB:
    """Takes what wandb.init takes, and no more; steps never go back, as there."""

    def __init__(self) -> None:
        self.inits: list[dict[str, Any]] = []
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.num_finished = 0
        self.Settings = lambda *, silent: ("silent", silent)

    def init(
        self, *, entity: str | None = None, project: str | None = None, dir: str | None = None,
        id: str | None = None, name: str | None = None, config: dict[str, Any] | None = None,
        mode: str | None = None, reinit: str | None = None, resume: str | None = None,
        settings: Any = None,
    ) -> Any:  # fmt: skip
        assert mode in (None, "online", "offline", "disabled", "shared")
        assert resume in (None, "allow", "never", "must", "auto")
        assert id is None or not set(id) & set("/\\#?%:")
        assert reinit in (None, "default", "return_previous", "finish_previous", "create_new")
        given = {**locals()}
        self.inits.append({k: v for k, v in given.items() if k != "self" and v is not None})
        is_offline = mode == "offline"
        return SimpleNamespace(
            log=lambda data, step=None: self.logged.append((step, data)),
            finish=self._finish,
            url=None if is_offline else f"https://wandb.ai/me/{project}/runs/{id}",
        )

    def _finish(self, exit_code: int | None = None) -> None:
        self.num_finished += 1


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> FakeWandB:
    library = FakeWandB()
    monkeypatch.setitem(sys.modules, "wandb", library)
    return library


def test_wandb_without_a_login_is_offline_and_says_how_to_upload(
    tmp_path: Path, wandb: FakeWandB
) -> None:
    run = LoggedRun(tmp_path, {"learning_rate": 0.1})
    (logger,) = open_loggers(["wandb"], run)
    logger.metrics(3, {"loss": 0.5})
    logger.close()
    assert wandb.inits == [
        {
            "project": "monarch", "name": tmp_path.name, "id": run.uid, "resume": "allow",
            "dir": str(tmp_path), "mode": "offline", "config": {"learning_rate": 0.1},
            "reinit": "create_new", "settings": ("silent", True),
        }
    ]  # fmt: skip
    assert wandb.logged == [(3, {"loss": 0.5})]
    assert wandb.num_finished == 1
    assert logger.place == f"W&B, offline (no login was found): wandb sync {tmp_path / 'wandb'}"


@pytest.mark.parametrize("by", ["key", "netrc"])
def test_wandb_with_a_login_is_online(
    tmp_path: Path, wandb: FakeWandB, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    if by == "key":
        monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    else:
        (tmp_path / "netrc").write_text("machine api.wandb.ai login user password secret\n")
        (tmp_path / "netrc").chmod(0o600)
    run = LoggedRun(tmp_path, wandb_project="waves", wandb_entity="team")
    (logger,) = open_loggers(["wandb"], run)
    (given,) = wandb.inits
    assert "mode" not in given, "wandb's own default"
    assert (given["project"], given["entity"]) == ("waves", "team")
    assert logger.place.startswith("https://wandb.ai/")


def test_what_wandbs_own_variables_say_is_left_to_it(
    tmp_path: Path, wandb: FakeWandB, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in VARIABLES:
        if name.startswith("WANDB_") and name not in ("WANDB_API_KEY", "WANDB_BASE_URL"):
            monkeypatch.setenv(name, "theirs")
    open_loggers(["wandb"], LoggedRun(tmp_path))
    assert wandb.inits[0].keys() == {"config", "reinit", "settings"}
    open_loggers(["wandb"], LoggedRun(tmp_path, wandb_project="mine"))
    assert wandb.inits[1]["project"] == "mine", "a key of the config is the newer word"


def test_a_run_that_goes_on_has_one_id_and_another_run_another(tmp_path: Path) -> None:
    assert LoggedRun(tmp_path / "ddp-1").uid == LoggedRun(tmp_path / "ddp-1").uid
    assert LoggedRun(tmp_path / "ddp-1").uid != LoggedRun(tmp_path / "other/ddp-1").uid


class FakeMLflow:
    """A server's runs, as MlflowClient has them."""

    def __init__(self) -> None:
        self.uris: list[str] = []
        self.experiments: dict[str, str] = {}
        self.runs: dict[str, dict[str, Any]] = {}

    def MlflowClient(self, tracking_uri: str | None = None) -> FakeMLflow:
        self.uris.append(str(tracking_uri))
        return self

    def get_experiment_by_name(self, name: str) -> Any:
        found = self.experiments.get(name)
        return None if found is None else SimpleNamespace(experiment_id=found)

    def create_experiment(self, name: str) -> str:
        assert name not in self.experiments
        self.experiments[name] = str(len(self.experiments) + 1)
        return self.experiments[name]

    def create_run(self, experiment_id: str, *, run_name: str | None = None) -> Any:
        uid = f"run{len(self.runs)}"
        self.runs[uid] = {"in": experiment_id, "name": run_name, "params": {}, "metrics": []}
        return SimpleNamespace(info=SimpleNamespace(run_id=uid))

    def log_param(self, run_id: str, key: str, value: Any) -> Any:
        assert self.runs[run_id]["params"].setdefault(key, value) == value, "it cannot change"

    def log_metric(
        self, run_id: str, key: str, value: float, timestamp: int | None = None,
        step: int | None = None,
    ) -> None:  # fmt: skip
        assert isinstance(value, float)
        assert timestamp is not None
        assert timestamp > 1e12, "milliseconds"
        self.runs[run_id]["metrics"].append((key, value, step))

    def set_terminated(self, run_id: str, status: str | None = None) -> None:
        self.runs[run_id]["ended"] = True


def test_mlflow_gets_params_and_steps_and_goes_on_in_the_same_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = FakeMLflow()
    monkeypatch.setitem(sys.modules, "mlflow", server)
    run = LoggedRun(tmp_path, {"learning_rate": 0.1})
    for step, config in (1, {"learning_rate": 0.1}), (2, {"learning_rate": 0.2}):
        (logger,) = open_loggers(["mlflow"], LoggedRun(tmp_path, config))
        logger.metrics(step, {"loss": 1})
        logger.close()
    assert server.runs == {
        "run0": {
            "in": "1", "name": run.folder.name, "params": {"learning_rate": 0.1}, "ended": True,
            "metrics": [("loss", 1.0, 1), ("loss", 1.0, 2)],
        }
    }  # fmt: skip
    assert server.uris == [(tmp_path.parent / "mlflow").as_uri()] * 2
    assert list(server.experiments) == ["monarch"]


def test_mlflow_goes_where_its_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = FakeMLflow()
    monkeypatch.setitem(sys.modules, "mlflow", server)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking:5000")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "waves")
    (logger,) = open_loggers(["mlflow"], LoggedRun(tmp_path))
    assert server.uris == ["http://tracking:5000"]
    assert list(server.experiments) == ["waves"]
    assert logger.place == "MLflow, http://tracking:5000, run run0"


def test_a_logger_that_fails_ends_no_run_and_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = FakeMLflow()
    monkeypatch.setitem(sys.modules, "mlflow", server)
    shown = io.StringIO()
    record = Record(tmp_path, LineDisplay(shown))
    record.log_to(["mlflow"])

    def refuse(*arguments: Any, **more: Any) -> None:
        raise ConnectionError("the server is gone")

    monkeypatch.setattr(server, "log_metric", refuse)
    for step in (1, 2, 3):
        record.metrics(step, 3, {"loss": 1.0})
    record.close()
    assert shown.getvalue().count("MLflow gets no more metrics: ConnectionError: the server") == 1
