"""Services that programs can ask of a job: telemetry and its page. There is no admin service."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import warnings
from dataclasses import dataclass

from monarch.errors import JobError
from monarch.python_start import module_arguments
from monarch.runtime.ends.process_group import end_child


@dataclass
class TelemetryConfig:
    """Settings of telemetry: what is kept, and for how long. Times are seconds.

    Rows of dead procs are kept for ``retention_secs``. ``dashboard_port`` 0 is any free port.
    ``snapshot_interval_secs`` has no effect: the state of a mesh is asked for at each query.
    """

    retention_secs: int = 3600
    include_dashboard: bool = False
    dashboard_port: int = 8265
    snapshot_interval_secs: float = 30.0


@dataclass
class MeshAdminConfig:
    """The address of the HTTP service for a job's meshes, which does not exist yet."""

    admin_addr: str | None = None


def warn_of_missing(service: str) -> None:
    """Warn that the program does not get ``service``; the warning names the program's own line."""
    warnings.warn(
        f"this release has no {service}: the job runs without. `monarch status` shows hosts and "
        "procs; metrics and spans go to OpenTelemetry where it is installed",
        stacklevel=3,
    )


def start_dashboard(job: str, port: int) -> str:
    """Start `monarch dashboard` for a job's state, as a process that ends with this one.

    Returns the URL of its page. Raises ``JobError`` if it cannot be started.
    """
    arguments = [*module_arguments("monarch.cli.main"), "dashboard", "--stdin", "--port", str(port)]
    page = subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert page.stdin is not None
    assert page.stdout is not None
    assert page.stderr is not None
    # The line has the job's secret, so it goes through a pipe; when the pipe ends, the page ends.
    page.stdin.write(json.dumps({"job": job, "pid": os.getpid()}) + "\n")
    page.stdin.flush()
    url = page.stdout.readline().strip()
    if not url.startswith("http"):
        page.wait()
        raise JobError(f"the dashboard could not be started: {page.stderr.read().strip() or url}")
    atexit.register(_end, page)
    return url


def _end(page: subprocess.Popen[str]) -> None:
    end_child(page)
    for stream in (page.stdin, page.stdout, page.stderr):
        if stream is not None:
            stream.close()
