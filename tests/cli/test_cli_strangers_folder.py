"""A folder from a stranger: commands that look run nothing of it.

Each command of the tree is listed below as one that looks or one that acts, as a new one has to be.
The folder has a state of a job, contexts, a project file and modules that each leave a trace.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from monarch.cli.commands import cli

# Commands that look, each with arguments; with other options, some of them act.
LOOKS = {
    "status": ["", "--watch"],
    "hosts": ["", "--json"],
    "logs": ["", "--agents"],
    "sync": ["--dry-run", "--dry-run --json"],
    "sync status": ["", "--json"],
    "sync history": [""],
    "sync diff": [""],
    "doctor": ["", "--json"],
    "hang": ["", "--run latest"],
    "query": ["", "calls", "calls --run latest"],
    "trace": ["", "--run latest"],
    "profile": [""],
    "top": [""],
    "tui": [""],
    "help": ["", "run"],
    "dashboard": ["--port 0"],
    "stacks": [""],
    "debug": [""],
    "env": [""],
    "env get": ["PATH"],
    "env list": [""],
    "env diff": [""],
    "run": ["ddp --plan", "ddp --show-origin", "ddp --config ddp.toml --show-origin"],
    "runs ls": [""],
    "runs show": ["", "latest"],
    "runs logs": [""],
    "runs plot": ["loss"],
    "runs compare": ["latest latest"],
    "recipe ls": [""],
    "recipe show": ["ddp", "ddp --toml"],
    "recipe validate": ["ddp", "ddp --config ddp.toml"],
    "context ls": [""],
    "trust": ["--list"],
    "init": ["", "new"],
}

# Commands that a person gives to have something done. Those that need an allocation find none here.
ACTS = {
    "apply", "kill", "dev", "sync", "sync rollback", "exec", "shell", "forward", "host",
    "context create", "context use", "context rm", "run", "sweep", "runs rm", "runs attach",
    "runs hold", "runs take", "runs wait",
    "recipe cp", "recipe prepare", "recipe export", "env set", "env unset", "trust",
}  # fmt: skip

_MODULES = ("json", "torch", "rich", "yaml", "numpy", "evil", "task", "ddp", "logging", "readline")
_COMMANDS = ("ssh", "sbatch", "squeue", "scontrol", "sinfo", "kubectl", "git", "python3")


def _commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[str]:
    if not isinstance(command, click.Group) or command.invoke_without_command:
        yield " ".join(path)
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from _commands(inner, (*path, name))


def test_each_command_is_known_to_look_or_to_act() -> None:
    assert set(_commands(cli)) == LOOKS.keys() | ACTS


class StrangersFolder:
    """All that a stranger can put into an archive. What of it runs leaves a file in ``traces``."""

    def __init__(self, root: Path) -> None:
        self.root, self.traces = root, root / "traces"
        self.path, self.tools = root / "project", root / "tools"
        for folder in (self.path / ".monarch/contexts", self.traces, self.tools):
            folder.mkdir(parents=True)
        for name in _COMMANDS:
            tool = self.tools / name
            tool.write_text(f"#!/bin/sh\ntouch {self.traces}/command-{name}\nexit 1\n")
            tool.chmod(0o755)
        for name in _MODULES:
            self.write(f"{name}.py", f"open({str(self.traces / f'module-{name}')!r}, 'w')\n")
        way = f"-oProxyCommand=touch {self.traces}/proxy"
        self.write(
            "monarch.toml",
            '[job]\nkind = "ssh"\nhosts = { trainers = ["gpu1"] }\npreload = ["evil"]\n'
            f'[job.env]\nLD_PRELOAD = "./evil.so"\n[job.ssh]\nargs = [{json.dumps(way)}]\n'
            'gateway = "gw"\n[workspace]\ndirs = ["."]\n',
        )
        self.write("ddp.toml", "num_epochs = 2\n")
        wanted = {
            "python_exe": "python3", "monarch_port": 22222, "env": {}, "preload": ["evil"],
            "names": {"trainers": ["gpu1"]}, "ssh_args": [way], "gateway": "gw",
        }  # fmt: skip
        host = {
            "mesh": "trainers", "name": "gpu1", "url": "tcp://127.0.0.1:9", "pid": 1, "started": 1,
            "directory": "/tmp/x", "workspace": "/tmp/x/w",
        }  # fmt: skip
        state = {
            "version": 2, "kind": "ssh", "bases": [], "apply_id": "x", "wanted": wanted,
            "allocation": "a", "secret": "00" * 32, "hosts": [host], "signature": "00" * 32,
        }  # fmt: skip
        for name in ("job_state.json", "contexts/default/job_state.json", "contexts/other/spec"):
            self.write(f".monarch/{name}", json.dumps(state))
            (self.path / ".monarch" / name).chmod(0o600)
        self.write(".monarch/contexts/default/spec", "evil.job\n")
        run = "runs/ddp-20260101-000000"
        self.write(f"{run}/command", "run ddp\n")
        self.write(f"{run}/config.toml", "num_epochs = 2\n")
        self.write(f"{run}/env.json", json.dumps({"command": ["run", "ddp"], "pid": 1}))
        self.write(f"{run}/events.jsonl", '{"time": 1.0, "kind": "begun", "text": "x"}\n')
        self.write(f"{run}/metrics.jsonl", '{"step": 1, "num_steps": 2, "time": 2.0, "loss": 1}\n')
        self.write(
            f"{run}/detached.json", '{"uid": "x", "url": "tcp://127.0.0.1:9", "folder": "x"}'
        )
        self.write(f"{run}/remote.json", '{"is_running": true}')
        (self.path / "runs/latest").symlink_to("ddp-20260101-000000")

    def write(self, name: str, text: str) -> None:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def monarch(self, commands: list[str], **environment: str) -> dict[str, tuple[list[str], str]]:
        """What each command left in ``traces``, and its output. Each is run in a fresh copy of the
        folder ("a; b" in one), by a process that has imported the command line from elsewhere, as
        the installed script does."""
        env = {name: value for name, value in os.environ.items() if name != "MONARCH_TRUST"} | {
            "PATH": f"{self.tools}:{os.environ['PATH']}",
            "HOME": str(self.root), "XDG_STATE_HOME": str(self.root / "state"), **environment,
        }  # fmt: skip
        script = self.root / "forks.py"
        script.write_text(_FORKS)
        done = subprocess.run(
            [sys.executable, str(script), str(self.path), str(self.traces), *commands],
            env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600,
            check=True,
        )  # fmt: skip
        return {name: (traces, said) for name, traces, said in json.loads(done.stdout)}


_FORKS = """
import json, os, shutil, signal, sys
from monarch.cli.main import main
folder, traces, *commands = sys.argv[1:]
found = []
for command in commands:
    copy = folder + "-copy"
    shutil.copytree(folder, copy, symlinks=True)
    output = copy + ".output"
    for part in command.split(";"):
        child = os.fork()
        if not child:
            os.setsid()
            log = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            for stream in (1, 2):
                os.dup2(log, stream)
            os.chdir(copy)
            sys.path.pop(0)
            sys.argv = ["monarch", *part.split()]
            signal.alarm(100)
            try:
                main()
            except SystemExit:
                pass
            finally:
                sys.stdout.flush()
                os._exit(0)
        os.waitpid(child, 0)
    with open(output, errors="replace") as file:
        said = file.read()
    os.unlink(output)
    found.append([command, sorted(os.listdir(traces)), said])
    for name in os.listdir(traces):
        os.unlink(os.path.join(traces, name))
    shutil.rmtree(copy)
sys.stdout.write(json.dumps(found))
"""


@pytest.fixture
def stranger(tmp_path: Path) -> StrangersFolder:
    return StrangersFolder(tmp_path)


def _all_that_look() -> list[str]:
    return [f"{name} {given}".strip() for name, ways in LOOKS.items() for given in ways]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_commands_that_look_run_nothing_of_the_folder(stranger: StrangersFolder) -> None:
    traces = {
        # git is the person's own; what it is asked is another matter (test_runs_git.py).
        command: [name for name in left if name != "command-git"]
        for command, (left, said) in stranger.monarch(_all_that_look()).items()
        if "Traceback" not in said or pytest.fail(f"{command}: {said}")
    }
    assert {command: left for command, left in traces.items() if left} == {}


@pytest.mark.long
@pytest.mark.timeout(300)
def test_commands_that_act_are_refused_what_nobody_agreed_to(stranger: StrangersFolder) -> None:
    commands = ["apply", "dev ddp", "kill --yes", "sync --yes", "exec true", "apply --yes"]
    for command, (traces, said) in stranger.monarch(commands).items():
        assert not {"proxy", "command-ssh", "module-evil"} & set(traces), command
        if command.startswith(("apply", "dev")):
            assert "you have not agreed to that" in " ".join(said.split()), said
            assert "ProxyCommand" in said
            assert "monarch trust" in said


@pytest.mark.long
def test_the_traces_show_what_runs(stranger: StrangersFolder) -> None:
    """With trust, the same folder has its command run: the test above can fail."""
    ((traces, _),) = stranger.monarch(["apply"], MONARCH_TRUST="1").values()
    assert "command-ssh" in traces


@pytest.mark.long
def test_links_that_came_along_lead_nowhere(stranger: StrangersFolder) -> None:
    precious = stranger.root / "precious"
    precious.mkdir()
    (precious / "authorized_keys").write_text("mine")
    for module in stranger.path.glob("*.py"):
        module.unlink()
    (stranger.path / ".monarch/job_state.json").unlink()
    (stranger.path / ".monarch/job_state.json").symlink_to(precious / "authorized_keys")
    stranger.write("monarch.toml", "[job]\nhosts = { trainers = 1 }\n")
    (said,) = (
        said
        for _, said in stranger.monarch(
            ["status; context create mine; apply; status; kill"]
        ).values()
    )
    assert "no allocation is up" in said
    assert said.endswith("ended\n")
    assert os.listdir(precious) == ["authorized_keys"]
    assert (precious / "authorized_keys").read_text() == "mine"
