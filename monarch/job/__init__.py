"""Allocations of machines: how programs make them, find them again, and end them.

What to open:

    job, state                   `JobTrait`, the base class, and its state; a running job as
                                 programs see it
    kinds/                       local processes, SSH, Slurm, Kubernetes, Ray, clouds
    exec/                        commands, shells and ports on hosts
    bundle/                      monarch for hosts that have none
    doctor/                      checks that find what would fail, before the start
    places, state_folder         where a state is kept, for the path that names it; the user's own
                                 folder for that, and its key
    person_note                  the file in a project that says where its state is
    services                     telemetry of a job, and its page
    service_ids                  names of hosts that a launcher chooses
    current_job, contexts        the job of a folder; several jobs in one folder
    ended                        the note of how a folder's last job was ended
    waiting                      a message for waits that take long
    mounts                       folders that are equal on other hosts while a mount is open
"""

from monarch.actor import hosts_from_config
from monarch.job.contexts import DEFAULT_JOB_PATH
from monarch.job.current_job import load_current_job, set_current_job
from monarch.job.exec.commands import PortForwarder, exec_command, shell
from monarch.job.job import JobTrait, job_load, job_loads
from monarch.job.kinds.batch import BatchJob
from monarch.job.kinds.kube_api import KubeConfig
from monarch.job.kinds.kubernetes import ImageSpec, KubernetesJob
from monarch.job.kinds.lightning import LightningJob
from monarch.job.kinds.local import LocalJob
from monarch.job.kinds.login import LoginJob
from monarch.job.kinds.process import ProcessJob
from monarch.job.kinds.ray import RayJob
from monarch.job.kinds.skypilot import SkyPilotJob
from monarch.job.kinds.slurm import SlurmJob
from monarch.job.kinds.ssh import SSHJob
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
