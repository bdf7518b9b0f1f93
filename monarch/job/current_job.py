"""The job of the context in use, as an object of a Python module."""

from __future__ import annotations

import importlib
import os
import sys

from monarch.errors import JobError
from monarch.job.contexts import current_context, spec_of, write_spec
from monarch.job.job import JobTrait


def job_named(spec: str) -> JobTrait:
    """Import and return the job ``spec``, as MODULE.NAME. The module may be in this folder.

    Raises ``JobError`` if it cannot be imported, or is no job.
    """
    module, _, name = spec.rpartition(".")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        job = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise JobError(f"{spec} is not a job: {error}") from None
    if not isinstance(job, JobTrait):
        raise JobError(f"{spec} is a {type(job).__name__}, not a job")
    return job


def set_current_job(module_path: str) -> None:
    """Make MODULE.NAME the job of ``monarch apply`` and ``load_current_job`` in this context.

    Raises ``JobError`` if it is no job.
    """
    job_named(module_path)
    write_spec(current_context(), module_path)


def load_current_job() -> JobTrait:
    """Return the job of ``set_current_job``, or of the last ``monarch apply MODULE.NAME``.

    Raises ``JobError`` if none was set in the context in use.
    """
    spec = spec_of(current_context())
    if not spec or spec.endswith(".toml"):
        raise JobError("no job was set: `set_current_job('module.name')`, or `monarch apply`")
    return job_named(spec)
