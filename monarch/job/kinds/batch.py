"""The job of a client script that its own job has started."""

from __future__ import annotations

import os
from typing import Any

from monarch.job.job import JobState, JobTrait, job_of

BATCH_VARIABLE = "MONARCH_BATCH_JOB"


class BatchJob(JobTrait):
    """The job of a program that another ``job`` has started (``apply(client_script)``).

    In that program, ``state()`` of any job returns the hosts of ``job``. This job fits no other
    program.
    """

    kind = "batch"

    def __init__(self, job: JobTrait) -> None:
        super().__init__()
        self.job = job

    def _create(self, client_script: str | None) -> None:
        self.job._create(client_script)

    def _state(self) -> JobState:
        return self.job._state()

    def _is_running(self) -> bool:
        return self.job._is_running()

    def _kill(self) -> None:
        self.job._kill()

    def urls(self) -> list[str]:
        """Return the URLs of the hosts of the job that started the program."""
        return self.job.urls()

    def names_by_url(self) -> dict[str, str]:
        """Return the names of the hosts of the job that started the program, by URL."""
        return self.job.names_by_url()

    def can_run(self, spec: JobTrait) -> bool:
        """Whether this program is the one that the job runs; then any ``spec`` fits."""
        return os.environ.get(BATCH_VARIABLE) == "1"

    def _to_data(self) -> dict[str, Any]:
        return {"job": self.job._fields()}

    @classmethod
    def _from_data(cls, data: dict[str, Any]) -> BatchJob:
        return cls(job_of(dict(data["job"])))
