"""Services that programs ask a job for, and that this release does not have yet."""

from __future__ import annotations

import warnings
from dataclasses import dataclass


@dataclass
class TelemetryConfig:
    """What telemetry keeps, and for how long. Times are seconds."""

    retention_secs: int = 3600
    include_dashboard: bool = False
    dashboard_port: int = 8265
    snapshot_interval_secs: float = 30.0


@dataclass
class MeshAdminConfig:
    """Where the HTTP service of a job's meshes would listen."""

    admin_addr: str | None = None


def warn_of_missing(what: str) -> None:
    """Say, where the program asked for it, that it does not get ``what``."""
    warnings.warn(
        f"this release has no {what}: the job runs without. `monarch status` shows hosts and "
        "procs; metrics and spans go to OpenTelemetry where it is installed",
        stacklevel=3,
    )
