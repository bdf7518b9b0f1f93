"""Allocations of machines: how they are made, found again, and ended.

What to open, by what is to be changed:

- how hosts on other machines are asked, attached to and known by name: `remote.py`
- how logins start and end hosts; one login; how ssh is called: `login.py`; `login_session.py`;
  `ssh.py`
- what is run on the hosts for a person: `commands.py`, `exec_run.py`, `terminal_session.py`; on
  which of them: `ranks.py`; what would fail: `doctor/`
- several allocations in one folder: `contexts.py`, `current_job.py`
- what a host gets that has no monarch; how it finds and keeps that: `bundle.py`;
  `monarch/runtime/hosts/bundle_place.py`
- how hosts are waited for that a scheduler places, and places again: `scheduled.py`
- what Slurm is asked, and what its states mean: `slurm.py`
- what Kubernetes is asked for, how, and what pods' states mean: `kube_manifests.py`,
  `kube_api.py`; `kubernetes.py`, `kube_pods.py`
- Ray's actors that hold hosts; machines of clouds, and what they run: `ray.py`; `skypilot.py`,
  `lightning.py`, `cloud.py`
- names of hosts that a launcher chooses: `service_ids.py`
- how a host is brought up again; how others learn that a job is being ended, or was: `process.py`
  (`repair`); `job.py` (`ending`), `ended.py`
"""

from monarch.actor import hosts_from_config
from monarch.job.batch import BatchJob
from monarch.job.commands import PortForwarder, exec_command, shell
from monarch.job.contexts import DEFAULT_JOB_PATH
from monarch.job.current_job import load_current_job, set_current_job
from monarch.job.job import JobTrait, job_load, job_loads
from monarch.job.kube_api import KubeConfig
from monarch.job.kubernetes import ImageSpec, KubernetesJob
from monarch.job.lightning import LightningJob
from monarch.job.local import LocalJob
from monarch.job.login import LoginJob
from monarch.job.process import ProcessJob
from monarch.job.ray import RayJob
from monarch.job.service_ids import (
    SERVICE_PROC_IDS_ENV,
    SERVICE_PROC_RANK_ENV,
    deserialize_service_proc_ids,
    new_service_proc_id,
    ranked_service_proc_id_from_env,
    serialize_service_proc_ids,
    service_proc_addr,
    service_proc_addrs,
)
from monarch.job.services import MeshAdminConfig, TelemetryConfig
from monarch.job.skypilot import SkyPilotJob
from monarch.job.slurm import SlurmJob
from monarch.job.ssh import SSHJob
from monarch.job.state import JobState

__all__ = [
    "DEFAULT_JOB_PATH",
    "SERVICE_PROC_IDS_ENV",
    "SERVICE_PROC_RANK_ENV",
    "BatchJob",
    "ImageSpec",
    "JobState",
    "JobTrait",
    "KubeConfig",
    "KubernetesJob",
    "LightningJob",
    "LocalJob",
    "LoginJob",
    "MeshAdminConfig",
    "PortForwarder",
    "ProcessJob",
    "RayJob",
    "SSHJob",
    "SkyPilotJob",
    "SlurmJob",
    "TelemetryConfig",
    "deserialize_service_proc_ids",
    "exec_command",
    "hosts_from_config",
    "job_load",
    "job_loads",
    "load_current_job",
    "new_service_proc_id",
    "ranked_service_proc_id_from_env",
    "serialize_service_proc_ids",
    "service_proc_addr",
    "service_proc_addrs",
    "set_current_job",
    "shell",
]
