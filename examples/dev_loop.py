"""The dev loop on one machine: train, edit the code, sync, and train on, with nothing relaunched.

Run it with `make demo`. Two host agents stand for two machines: separate processes with
separate workspace folders. Each gets one proc, and the two train a CNN together with DDP.
"""

import asyncio
import shutil
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from monarch.actor import HostMesh
from monarch.job import ProcessJob
from monarch.spmd import setup_torch_elastic_env_async
from monarch_sync import Workspace

STEPS_BEFORE_EDIT, STEPS_BETWEEN, MAX_STEPS, TARGET = 60, 30, 600, 0.95
PROJECT = Path(__file__).parent / "workspace"
console = Console()

SMOOTHER_LOSS = (
    "return F.cross_entropy(logits, labels)",
    "return F.cross_entropy(logits, labels, label_smoothing=0.05)",
)
NEW_ENDPOINT = '''
    @endpoint
    def hardest_digit(self) -> int:
        """The digit that is misread most often."""
        images, labels = self.held_out
        with torch.no_grad():
            wrong = self.net.module(images).argmax(1) != labels
        return torch.bincount(labels[wrong], minlength=10).argmax().item()
'''
BROKEN_LINE = ("self.optimizer.zero_grad()\n", "self.optimizer.zero_grad(\n")


def edit(file: Path, old: str, new: str) -> None:
    """Save a change, as an editor would."""
    text = file.read_text()
    assert text.count(old) == 1, f"the demo no longer fits {file.name}"
    file.write_text(text.replace(old, new))


async def train(trainers, num_steps: int, until: float = 1.0) -> float:
    """Step all ranks together; every step is a message to each. Returns held-out accuracy."""
    numbers = "loss {task.fields[loss]:.3f}  acc {task.fields[accuracy]:.2f}  {task.fields[speed]}"
    columns = TextColumn("  {task.description:<9}"), BarColumn(18), TextColumn(numbers)
    held_out = 0.0
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=num_steps, loss=0.0, accuracy=0.0, speed="")
        for count in range(1, num_steps + 1):
            ranks = (await trainers.step.call()).values()
            loss, accuracy = (sum(r[k] for r in ranks) / len(ranks) for k in ("loss", "accuracy"))
            shown = {"loss": loss, "accuracy": accuracy, "description": f"step {ranks[0]['step']}"}
            speed = f"{sum(r['samples_per_second'] for r in ranks):>6.0f} samples/s"
            progress.update(task, advance=1, speed=speed, **shown)
            if count % 30 == 0:
                held_out = await trainers.slice(hosts=0).evaluate.call_one()
                if held_out > until:
                    progress.update(task, total=count)
                    break
    return held_out


def show(report) -> None:
    console.print(f"{report}\n", markup=False, highlight=False)


async def dev_loop(hosts: HostMesh, project: Path, started: float) -> None:
    workspace = Workspace(dirs={project: ""})
    source = project / "trainer.py"
    procs = hosts.spawn_procs(name="trainers", preload=["torch"])
    first = await procs.sync_workspace(workspace)
    show(first)
    await setup_torch_elastic_env_async(procs)
    trainers = procs.spawn("trainer", import_module("trainer").Trainer)
    await trainers.step.call()
    cold_seconds = time.perf_counter() - started
    await train(trainers, STEPS_BEFORE_EDIT)

    console.rule("2  edit the loss and add an endpoint; the live trainers take both")
    old = (await trainers.fingerprint.call()).values()
    edit(source, *SMOOTHER_LOSS)
    source.write_text(source.read_text() + NEW_ENDPOINT)
    report = await procs.sync_workspace(workspace)
    after = (await trainers.fingerprint.call()).values()
    assert old == after, "weights, optimizer or position changed"
    show(report)
    hardest = await trainers.slice(hosts=0).hardest_digit.call_one()
    console.print(f"  weights, optimizer and position kept; hardest_digit() says {hardest}")
    await train(trainers, STEPS_BETWEEN)

    console.rule("3  save a syntax error: refused, nobody changes, training goes on")
    edit(source, *BROKEN_LINE)
    refused = await procs.sync_workspace(workspace)
    assert not refused.ok
    show(refused)
    await train(trainers, STEPS_BETWEEN)

    console.rule(f"4  fix it, take the smoothing back, train on to over {TARGET:.0%}")
    edit(source, *reversed(BROKEN_LINE))
    edit(source, *reversed(SMOOTHER_LOSS))
    fixed = await procs.sync_workspace(workspace)
    show(fixed)
    accuracy = await train(trainers, MAX_STEPS, until=TARGET)
    assert accuracy > TARGET, f"only {accuracy:.1%}"

    rows = {
        "cold start, until the first step": f"{cold_seconds:.1f} s",
        "edit, until all ranks run it": f"{report.seconds * 1000:.0f} ms",
        "ratio": f"{cold_seconds / report.seconds:.0f} x",
        "held-out accuracy": f"{accuracy:.1%}",
        "generations": f"{fixed.generation}, and one edit refused",
        "bytes sent: first sync, edit": f"{first.bytes_sent:,}, {report.bytes_sent:,}",
    }
    table = Table(title="the dev loop", show_header=False)
    for row in rows.items():
        table.add_row(*row)
    console.print(table)


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="monarch-demo-"))
    job = ProcessJob({"trainers": 2}, preload=["torch"])
    try:
        project = Path(shutil.copytree(PROJECT, folder / "project"))
        sys.path.insert(0, str(project))
        started = time.perf_counter()
        console.rule("1  bring up two hosts, send them the project, start training")
        hosts = job.state(cached_path=None).trainers
        import_module("trainer")  # and torch with it, while the hosts do the same
        asyncio.run(dev_loop(hosts, project, started))
    except KeyboardInterrupt:
        console.print("interrupted; everything is being stopped")
        sys.exit(130)
    finally:
        job.kill()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
