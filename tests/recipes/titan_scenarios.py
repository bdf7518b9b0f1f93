"""The scenarios of test_recipes_titan_ranks.py, run once, on two procs: `titan_scenarios.py
FOLDER`.

Importing TorchTitan takes seconds, and so all happens in the same two processes.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import hashlib
import json
import os
import random
import resource
import shutil
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import psutil
import torch
from torch.distributed.tensor import DTensor

from monarch.actor import endpoint, this_host
from monarch.config_file import load_config
from monarch.errors import ActorError
from monarch.runs import LineDisplay, Record
from monarch.runs.record.record import EVENTS, METRICS
from monarch.runs.recover.ranks import RunFailed
from monarch_recipes import titan
from monarch_recipes.titan.checkpoints import find_checkpoint
from monarch_recipes.titan.config import TitanConfig, in_folder
from monarch_recipes.titan.tiny import prepare
from monarch_sync import Workspace
from tests.recipes.titan_support import FORWARD, RETURN_LOSS, keys

folder = Path(sys.argv[1])
workspace = folder / "workspace"
found: dict[str, Any] = {}
SMALL = [
    "model.flavor=test", "training.local_batch_size=2", "training.seq_len=32", "training.steps=4",
    "metrics.log_freq=1", "lr_scheduler.warmup_steps=2", "debug.seed=1", "checkpoint.interval=2",
    "validation.enable=false", "optimizer.lr=1e-2", "comm.init_timeout_seconds=100",
]  # fmt: skip


class Trainer(titan.TitanTrainer):
    @endpoint
    def digest(self) -> str:
        """Of all parameters and all of the optimizer's state, whoever holds it."""
        trainer = self.running().engine.trainer
        digest = hashlib.sha256()
        for part in trainer.model_parts:
            for parameter in part.parameters():
                digest.update(whole(parameter).detach().numpy().tobytes())
        for optimizer in trainer.optimizers.optimizers:
            for state in optimizer.state.values():
                digest.update(whole(state["exp_avg_sq"]).numpy().tobytes())
        return digest.hexdigest()

    @endpoint
    def process(self) -> tuple[int, bool]:
        return os.getpid(), gc.isenabled()


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def config(*overrides: str, run: str = "fsdp") -> TitanConfig:
    loaded = load_config(TitanConfig, workspace / "titan.toml", keys(*SMALL, *overrides))
    return in_folder(loaded.config, folder / run)


class Driver(titan.Driver):
    def __init__(self, procs: Any) -> None:
        super().__init__(procs)
        self.trainers = procs.spawn("probe", Trainer)

    def steps(self, number: int) -> list[float]:
        losses = []
        for _ in range(number):
            results = self.step()
            self.save_if_due()
            result = next(each for each in results if each.rank == self.metrics_rank)
            losses.append(result.values["loss"])
        return losses

    def setup(self, config: TitanConfig) -> Any:
        setup = super().setup(config)
        self.metrics_rank = setup.metrics_rank
        return setup

    def digest(self) -> list[str]:
        return sorted(self.ask(self.trainers.digest, doing="digest"))


@contextmanager
def scenario(name: str) -> Iterator[dict[str, Any]]:
    report: dict[str, Any] = {}
    try:
        yield report
    except BaseException:
        report["traceback"] = traceback.format_exc()
    found[name] = report


def refusal(action: Callable[[], object]) -> str:
    """The message to the person about something that must not work."""
    try:
        action()
    except ActorError as error:
        return f"{type(error.exception).__name__}: {error.exception}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "it worked"


def bad_inputs(driver: Driver) -> None:
    def tried(*overrides: str, run: str) -> str:
        return refusal(lambda: driver.setup(config(*overrides, run=run)))

    def copied(name: str, cut: int, *steps: int) -> str:
        """The checkpoints of the first scenario, one file of some of them cut short."""
        shutil.copytree(folder / "fsdp", folder / name)
        for step in steps:
            file = folder / name / f"checkpoints/titan/step-{step}/__1_0.distcp"
            file.write_bytes(file.read_bytes()[:-cut])
        return name

    with scenario("bad") as bad:
        bad["other model"] = tried("model.flavor=mini", run=copied("other", 0))
        bad["all truncated"] = tried(run=copied("truncated", 10, 2, 4))
        bad["no such step"] = tried("checkpoint.load_step=3", run="other")
        setup = driver.setup(config(run=copied("half", 10, 4)))
        bad["one truncated"] = [setup.first_step, *setup.notes]
        bad["no tokenizer"] = tried(f"model.hf_assets_path={folder}/nowhere", run="bad")
        bad["no data"] = tried(f"training.dataset_path={folder}/nowhere", run="bad")
        bad["no module"] = tried("experimental.custom_import=tiny_lama", run="bad")
        bad["no flavor"] = tried("model.flavor=minni", run="bad")
        bad["context"] = tried("parallelism.context_parallel_degree=2", run="bad")
        bad["profiler"] = tried("profiling.enable_profiling=true", run="bad")
        bad["experts"] = tried("parallelism.expert_parallel_degree=2", run="bad")


def reload(driver: Driver) -> None:
    code = workspace / "tiny_llama.py"

    def edit(old: str, new: str) -> list[str]:
        text = code.read_text()
        assert text.count(old) == 1
        code.write_text(text.replace(old, new))
        report = asyncio.run(driver.procs.sync_workspace(Workspace({workspace: ""})))
        report.raise_for_errors()
        return [new]

    def step() -> dict[str, Any]:
        results = driver.step()
        values = results[0].values
        generations = {result.generation for result in results}
        return {
            "step": results[0].step,
            "generations": sorted(generations),
            "loss": values["loss"],
            "rate": values["learning_rate"],
        }

    with scenario("reload") as report:
        asyncio.run(driver.procs.sync_workspace(Workspace({workspace: ""})))
        driver.setup(config("training.steps=100", "checkpoint.enable=false", run="reload"))
        report["before"] = [step() for _ in range(3)]
        edit(RETURN_LOSS, RETURN_LOSS.replace("return", "return 3 *"))
        report["loss"] = step()
        edit(FORWARD, FORWARD.replace(")\n", ") * 0\n"))
        report["model"] = step()
        edit("return learning_rate_factor(step, num_warmup_steps, num_steps)", "return 0.125")
        report["schedule"] = [step(), step()]


def warm(driver: Driver) -> None:
    with scenario("straight") as report:
        setup = driver.setup(config())
        report["setup"] = [setup.first_step, setup.num_parameters, setup.layout]
        report["losses"] = driver.steps(4)
        report["digests"] = driver.digest()
        report["process"] = driver.ask(driver.trainers.process, doing="process")
    with scenario("resumed") as report:
        setup = driver.setup(config("checkpoint.load_step=2"))
        report["setup"] = [setup.first_step, str(setup.resumed_from)]
        report["losses"] = driver.steps(2)
        report["digests"] = driver.digest()
    for name, *overrides in (
        ("tp", "parallelism.tensor_parallel_degree=2"),
        ("ddp", "parallelism.data_parallel_replicate_degree=2"),
        ("pp", "parallelism.pipeline_parallel_degree=2"),
    ):
        with scenario(name) as report:
            setup = driver.setup(config(*overrides, "checkpoint.load_step=2"))
            report["setup"] = [setup.first_step, setup.num_parameters, setup.layout]
            report["notes"] = list(setup.notes)
            report["losses"] = driver.steps(2)
            report["digests"] = driver.digest() if name != "pp" else []
            report["process"] = driver.ask(driver.trainers.process, doing="process")
    with scenario("live") as report:
        wanted = config("training.steps=10", "lr_scheduler.warmup_steps=0", run="live")
        driver.setup(wanted)
        report["before"] = driver.step()[0].values["learning_rate"]
        halved = dataclasses.replace(
            wanted, optimizer=dataclasses.replace(wanted.optimizer, lr=wanted.optimizer.lr / 2)
        )
        driver.configure(halved)
        report["after"] = driver.step()[0].values["learning_rate"]
        driver.close()
        report["process"] = driver.ask(driver.trainers.process, doing="process")


class Meddled(Record):
    """A record that does something to the run, once at each of some steps."""

    def __init__(
        self, name: str, at: Sequence[int] = (), meddle: Callable[[Meddled], object] = id
    ) -> None:
        self.stream = StringIO()
        super().__init__(folder / name, LineDisplay(self.stream, 10), procs_per_host=2)
        self.at, self.meddle = set(at), meddle
        self.others = children()

    def metrics(self, step: int, num_steps: int, values: Any) -> None:
        super().metrics(step, num_steps, values)
        if step in self.at:
            self.at.remove(step)
            self.meddle(self)

    def ranks(self) -> list[psutil.Process]:
        """The procs of this run."""
        return [proc for proc in children() if proc not in self.others]

    def rows(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / name).read_text().splitlines()]


def children() -> list[psutil.Process]:
    """All procs: children of the template process, which is ours."""
    return [proc for zygote in psutil.Process().children() for proc in zygote.children()]


def go(record: Meddled, *overrides: str) -> dict[str, Any]:
    """Returns the outcome of a run, and the files that it left."""
    loaded = load_config(TitanConfig, workspace / "titan.toml", keys(*SMALL, *overrides))
    report: dict[str, Any] = {}
    try:
        report |= dataclasses.asdict(titan.run(loaded.config, this_host(), record))
    except RunFailed as error:
        report["told"] = str(error)
    report["num_left"] = len(record.ranks())
    report["text"] = record.stream.getvalue()
    report["metrics"] = record.rows("metrics.jsonl") if (record.folder / METRICS).exists() else []
    report["events"] = record.rows("events.jsonl") if (record.folder / EVENTS).exists() else []
    checkpoints = (record.folder / "checkpoints/titan").glob("*")
    report["checkpoints"] = sorted(path.name for path in checkpoints)
    return report


def runs() -> None:
    many = ["training.steps=30", "training.local_batch_size=8", "checkpoint.interval=10"]
    valid = ["validation.enable=true", "validation.freq=15", "validation.steps=2"]
    small = ["validation.local_batch_size=2", "validation.seq_len=32"]
    with scenario("run") as report:
        # Step 15 has just been validated when it is told to stop.
        report["first"] = go(Meddled("run", [15], Meddled.stop), *many, *valid, *small)
        report["last"] = go(Meddled("run"), *many, *valid, *small)
    with scenario("failures") as report:
        report["nan"] = go(Meddled("nan"), "optimizer.lr=1e30", "training.steps=9")
        report["tokenizer"] = go(Meddled("unmade"), f"model.hf_assets_path={folder}/nowhere")
    with scenario("death") as report:
        report["run"] = go(Meddled("death", [3], lambda record: record.ranks()[-1].kill()))
    with scenario("kills") as report:
        chance = random.Random(5)

        def kill_soon(record: Meddled) -> None:
            """Also in the middle of a save, which is every other step."""

            def kill() -> None:
                for rank in record.ranks()[: chance.randint(1, 2)]:
                    rank.kill()

            threading.Timer(chance.uniform(0.0, 0.3), kill).start()

        report["harmed"] = go(Meddled("harmed", [5, 10, 15], kill_soon), "training.steps=24")
        report["unharmed"] = go(Meddled("unharmed"), "training.steps=24")
    with scenario("full") as report:

        def fill(record: Meddled) -> None:
            for rank in record.ranks():
                resource.prlimit(rank.pid, resource.RLIMIT_FSIZE, (1000, 1000))

        report["run"] = go(Meddled("full", [3], fill), "training.steps=6")
        found = find_checkpoint(folder / "full/checkpoints/titan")
        report["found"] = found and found.step
    troubled = [
        "experimental.custom_import=tests.recipes.titan_trouble", "training.dataset=troubled",
        "training.local_batch_size=16", "training.seq_len=64",
    ]  # fmt: skip

    def in_trouble(name: str, kind: str, at: int, *overrides: str) -> dict[str, Any]:
        mark = workspace / "trouble"
        if at == 0:
            mark.write_text(kind)
        record = Meddled(name, [at], lambda record: mark.write_text(kind))
        report = go(record, *troubled, *overrides)
        mark.unlink(missing_ok=True)
        return report

    with scenario("trouble") as report:
        seconds = "comm.train_timeout_seconds=5"
        report["hang"] = in_trouble("hang", "hang", 2, "training.steps=5", seconds)
        report["data"] = in_trouble("data", "raise", 3, "training.steps=5")
        report["doomed"] = in_trouble("doomed", "die", 0, "fault_tolerance.max_restarts=1")


def main() -> None:
    prepare(workspace)
    os.chdir(workspace)
    sys.path[:0] = [str(workspace), str(Path(__file__).parents[2])]
    procs = this_host().spawn_procs({"gpus": 2}, preload=titan.PRELOAD)
    driver = Driver(procs)
    warm(driver)
    runs()
    reload(driver)
    bad_inputs(driver)
    procs.stop().get()
    (folder / "found.json").write_text(json.dumps(found, default=str))


if __name__ == "__main__":
    main()
