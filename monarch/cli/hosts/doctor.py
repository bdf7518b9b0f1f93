"""``monarch doctor``: checks what would fail on the configured allocation, before it is started."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

import click

from monarch.cli.project import PROJECT_FILE, load_project, noted_job
from monarch.cli.terminal.phases import phase
from monarch.cli.terminal.terminal import Terminal
from monarch.cli.terminal.volume import is_quiet
from monarch.cli.trust import how_to_trust, is_trusted
from monarch.config_file import ConfigError
from monarch.job import (
    JobTrait,
    KubernetesJob,
    LightningJob,
    LoginJob,
    RayJob,
    SkyPilotJob,
    SlurmJob,
)
from monarch.job.doctor.clusters import of_cloud, of_kubernetes, of_ray
from monarch.job.doctor.examination import Examination, OpenProbe
from monarch.job.doctor.findings import Finding, summary
from monarch.job.doctor.probe_session import probe_by_agent, probe_by_login, probe_here
from monarch.job.exec.ranks import hosts_of
from monarch.runtime.client_agent import client
from monarch_sync.words import counted

_COLOURS = {"ok": "green", "note": None, "warning": "yellow", "failure": "red"}
_MARKS = {"ok": "✓", "note": "-", "warning": "!", "failure": "✗"}
_PLAIN_MARKS = {"ok": "ok", "note": "-", "warning": "!", "failure": "x"}


def doctor(file: str | None, timeout: float, is_json: bool) -> None:
    """Check, print the findings, and exit with 1 if something would fail."""
    try:
        project = load_project(file)
        if not is_trusted(project):
            text = "it has monarch run what its author chose, so nothing of it was looked at"
            mistake = Finding("failure", file or PROJECT_FILE, text, how_to_trust(project))
            _tell([mistake], {}, is_json)
            sys.exit(1)
        job = project.make_job()
    except ConfigError as error:
        _tell([Finding("failure", file or PROJECT_FILE, str(error))], {}, is_json)
        sys.exit(1)
    up = noted_job()
    is_up = up is not None and up.can_run(job) and bool(up.urls()) and up.is_running()
    # A host's port is taken by its own agent while that is up.
    port = getattr(job, "monarch_port", 0) if isinstance(job, LoginJob) and not is_up else 0
    brings = isinstance(job, LoginJob)
    examination = Examination(timeout, port=port, brings_monarch=brings)
    findings_before = list(_before(job, timeout))
    with phase("looking at the hosts"):
        probes = _probes(job, up if is_up else None)
        advice = "try `ssh HOST true` by hand" if isinstance(job, LoginJob) else ""
        examination.run(probes, dict.fromkeys(probes, advice))
    findings = [*findings_before, *examination.findings]
    if not probes and not findings:
        text = f"hosts of kind {job.kind} can be looked at once they are up"
        findings.append(Finding("note", "all hosts", text, "run this again after `monarch apply`"))
    if is_up:
        findings.append(Finding("ok", "allocation", "it is up, and is what is configured"))
    _tell(findings, {name: summary(look) for name, look in examination.told.items()}, is_json)
    if any(finding.level == "failure" for finding in findings):
        sys.exit(1)


def _before(job: JobTrait, timeout: float) -> Iterator[Finding]:
    """Yield findings about what can be checked without a host: commands here, schedulers."""
    if job.kind == "ssh":
        if shutil.which("ssh") is None:
            yield Finding(
                "failure", "here", "there is no `ssh` on the path", "install an OpenSSH client"
            )
    elif isinstance(job, SlurmJob):
        yield from _of_slurm(job, timeout)
    elif isinstance(job, KubernetesJob):
        yield from of_kubernetes(job)
    elif isinstance(job, RayJob):
        yield from of_ray(job)
    elif isinstance(job, LightningJob | SkyPilotJob):
        yield from of_cloud(job)
    examine = getattr(job, "examine", None)
    if examine is not None:
        yield from examine()


def _probes(job: JobTrait, up: JobTrait | None) -> dict[str, OpenProbe]:
    if up is not None:
        node = client().node
        return {
            host.name: functools.partial(probe_by_agent, node, up.visit(host.url))
            for host in hosts_of(up)
        }
    if isinstance(job, LoginJob):
        if job.kind == "ssh" and shutil.which("ssh") is None:
            return {}

        def log_in(host: str) -> OpenProbe:
            return lambda: probe_by_login(job._login(host), job.python_exe)

        return {host: log_in(host) for hosts in job.names.values() for host in hosts}
    if job.kind in ("process", "local"):
        return {"this machine": probe_here}
    return {}


def _of_slurm(job: SlurmJob, timeout: float) -> Iterator[Finding]:
    """Yield findings about Slurm's commands, and about what sbatch says to a test of the job.

    The test queues nothing.
    """
    missing = [
        name for name in ("sbatch", "squeue", "scontrol", "scancel") if not shutil.which(name)
    ]
    if missing:
        yield Finding(
            "failure",
            "here",
            f"not on the path: {', '.join(missing)}",
            "run this on a login node of the cluster, or load its module",
        )
        return
    _, reply = _ask(["scontrol", "ping"], timeout)
    if "UP" not in reply:
        yield Finding("failure", "slurm", f"its controller gives no answer: {reply}")
        return
    yield Finding("ok", "slurm", reply.splitlines()[0])
    _, reply = _ask(["sinfo", "-h", "-o", "%P|%D|%T|%G"], timeout)
    nodes = [line.split("|") for line in reply.splitlines() if line.count("|") == 3]
    partitions = list(dict.fromkeys(row[0].rstrip("*") for row in nodes))
    if job.partition and partitions and job.partition not in partitions:
        yield Finding(
            "failure",
            "slurm",
            f"there is no partition {job.partition!r}",
            f"there are: {', '.join(partitions)}",
        )
        return
    command = ["sbatch", "--test-only", *job.sbatch_options()]
    status, reply = _ask(command, timeout, job._script(None))
    reply = " ".join(reply.split())
    if status:
        advice = "see what the partition has: `sinfo -o '%P %D %c %m %G'`"
        yield Finding("failure", "slurm", f"it would refuse the job: {reply}", advice)
    else:
        yield Finding("ok", "slurm", f"it would take the job: {reply}")


def _ask(command: list[str], timeout: float, script: str = "") -> tuple[int, str]:
    """Return the status and the output of a command; 1 and the reason if it gives no answer."""
    try:
        result = subprocess.run(
            command, input=script, capture_output=True, text=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        return 1, f"`{command[0]}` gave no answer within {timeout:g} s"
    except OSError as error:
        return 1, str(error)
    return result.returncode, (result.stdout + result.stderr).strip()


def _tell(findings: list[Finding], hosts: dict[str, str], is_json: bool) -> None:
    if is_json:
        body = {"findings": [finding._asdict() for finding in findings], "hosts": hosts}
        click.echo(json.dumps(body, indent=2))
        return
    terminal = Terminal()
    marks = _PLAIN_MARKS if terminal.ascii_only else _MARKS
    wrong = {finding.where for finding in findings if finding.level in ("warning", "failure")}
    for name, text in hosts.items():
        if not is_quiet():
            mark = "ok" if name not in wrong else "note"
            terminal.prose(f"{marks[mark]} {name}: {text}", _COLOURS[mark])
    for finding in findings:
        if is_quiet() and finding.level in ("ok", "note"):
            continue
        advice = f". {finding.mend[:1].upper()}{finding.mend[1:]}" if finding.mend else ""
        text = f"{marks[finding.level]} {finding.where}: {finding.text}{advice}"
        terminal.prose(text, _COLOURS[finding.level])
    if not is_quiet():
        num = Counter(finding.level for finding in findings)
        counts = [counted(num[level], level) for level in ("failure", "warning") if num[level]]
        terminal.prose(", ".join(counts) or "nothing was found that would fail")
