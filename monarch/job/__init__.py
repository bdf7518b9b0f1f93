"""Allocations of machines: how they are made, found again, and ended."""

from monarch.job.job import DEFAULT_JOB_PATH, JobState, JobTrait, job_load, job_loads
from monarch.job.local import LocalJob
from monarch.job.process import ProcessJob

__all__ = [
    "DEFAULT_JOB_PATH",
    "JobState",
    "JobTrait",
    "LocalJob",
    "ProcessJob",
    "job_load",
    "job_loads",
]
