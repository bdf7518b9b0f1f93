"""Allocations of machines: how they are made, found again, and ended.

What to open:

    job, state                   `JobTrait`, the base class, and its state; a running job as
                                 programs see it
    places, state_folder         where a state is kept, for the path that names it; the user's own
                                 folder for that, and its key
    person_note                  the file in a project that tells a person of the state
    services                     telemetry and its page, as programs ask a job for them
    current_job, contexts        the job of a folder; several jobs in one folder
    ended                        the note of how a folder's last job was ended
    waiting                      waits that take long say what for
    local                        this machine as an allocation
    process                      local processes as hosts, and how lost ones are brought up again
    remote                       hosts on other machines: asked, attached to, known by name
    login                        hosts that are started by a login
    login_session, ssh           one login; how ssh is called
    scheduled                    hosts that a scheduler places
    batch                        the job of a client script that its own job has started
    slurm                        what Slurm is asked, and what its states mean
    kubernetes, kube_pods        jobs on Kubernetes; what the states of pods mean
    kube_manifests, kube_api     the manifests of a job; how the API server is asked
    ray                          nodes of a Ray cluster
    skypilot, lightning, cloud   machines of clouds; the command that these run
    bundle, bundle_offer         monarch for hosts that have none, and its delivery; the hosts' end:
                                 `monarch/runtime/hosts/bundle_place.py`
    service_ids                  names of hosts that a launcher chooses
    commands                     commands, a shell and forwarded ports, for programs
    mounts                       folders that are equal on other hosts while a mount is open
    exec_run, ranks              one command on many ranks; which ranks, and what each is told
    terminal_session             a person's terminal on a host
    doctor/                      what would fail, found before the start
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
