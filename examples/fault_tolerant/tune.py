"""A config edited here and run there, again and again, on hosts that stay up.

    python examples/fault_tolerant/tune.py

Writes a config, brings it to the hosts, looks that it is there, trains with it; then changes the
learning rate, and does so again. The second round has no process to wait for but its own.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

from monarch.actor import Actor, endpoint
from monarch.config_file import load_config
from monarch.job import ProcessJob
from monarch.runs import LineDisplay, Record
from monarch_recipes.fault_tolerant import FaultTolerantConfig, run
from monarch_sync import Workspace

CALM = Path(__file__).with_name("calm.toml")


class FileChecker(Actor):
    """Reads the files of the workspace on its host."""

    @endpoint
    def read(self, name: str) -> str:
        return (Path(os.environ["WORKSPACE_DIR"]) / name).read_text()


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="tune-") as folder:
        tune(Path(folder))


def tune(folder: Path) -> None:
    workspace = Workspace(dirs={folder / "configs": ""})
    config_file = folder / "configs" / "groups.toml"
    config_file.parent.mkdir()
    job = ProcessJob({"trainers": 1})
    try:
        hosts = job.state(cached_path=None).trainers
        for number, learning_rate in enumerate(("2e-2", "5e-3"), 1):
            config_file.write_text(CALM.read_text().replace("2e-2", learning_rate))
            report = hosts.sync_workspace(workspace).get()
            report.raise_for_errors()
            print(f"round {number}: {report.one_line()}")

            checker_procs = hosts.spawn_procs()
            checker = checker_procs.spawn("checker", FileChecker)
            assert set(checker.read.call(config_file.name).get().values()) == {
                config_file.read_text()
            }
            checker_procs.stop().get()

            config = load_config(FaultTolerantConfig, config_file).config
            record = Record(
                folder / f"round{number}", LineDisplay(sys.stdout, 20), procs_per_host=2
            )
            started = time.perf_counter()
            outcome = run(config, hosts, record)
            print(
                f"learning rate {learning_rate}: {outcome.held_out['accuracy']:.1%} in "
                f"{time.perf_counter() - started:.1f} s, {len(outcome.fingerprints)} groups alike"
            )
    finally:
        job.kill()


if __name__ == "__main__":
    main()
