"""This machine as an allocation: nothing is started, and nothing outlives the program."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from monarch.actor import this_host
from monarch.job.job import JobState, JobTrait
from monarch.job.kinds.batch import BATCH_VARIABLE
from monarch.runtime.ends.process_group import end_child

_TERM_SECONDS = 5.0


class LocalJob(JobTrait):
    """A job on this machine: each name in ``hosts`` is a mesh that consists of ``this_host()``."""

    kind = "local"

    def __init__(self, hosts: Sequence[str] = ("hosts",)) -> None:
        super().__init__()
        self.host_names = tuple(hosts)
        self.process: subprocess.Popen[bytes] | None = None

    def _create(self, client_script: str | None) -> None:
        if client_script is None:
            return
        folder = Path(".monarch/logs") / f"job_{uuid.uuid4().hex[:8]}"
        folder.mkdir(parents=True)
        with open(folder / "stdout.log", "wb") as out, open(folder / "stderr.log", "wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, client_script],
                env={**os.environ, BATCH_VARIABLE: "1"},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def _state(self) -> JobState:
        return JobState({name: this_host() for name in self.host_names})

    def can_run(self, spec: JobTrait) -> bool:
        """Return False: the hosts are in this program, so no later program can use them."""
        return False

    def _kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            end_child(self.process, _TERM_SECONDS)

    def _to_data(self) -> dict[str, Any]:
        return {"hosts": list(self.host_names)}

    @classmethod
    def _from_data(cls, data: dict[str, Any]) -> LocalJob:
        return cls(data["hosts"])
