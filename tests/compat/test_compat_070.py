"""What programs for Monarch 0.7.0 use, and older releases did not have."""

from __future__ import annotations

import inspect
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import monarch
from monarch.actor import Actor, ActorAddr, Channel, current_rank, endpoint, send, this_host
from monarch.cli.commands import cli
from monarch.compat import command_line, thread_timeout
from monarch.errors import JobError
from monarch.job import JobState, JobTrait, TelemetryConfig
from monarch.spmd.store import start_worker

SECONDS = 60.0


class Buffer(Actor):
    def __init__(self) -> None:
        self.size = 1

    @endpoint
    def grow(self, by: int) -> int:
        """Adds to it."""
        self.size += by
        return self.size

    @endpoint
    def rank(self) -> int:
        return current_rank().rank


class LaterBuffer(Actor):
    @endpoint
    async def grow(self, by: int) -> int:
        return by


def test_an_endpoint_of_an_instance_has_its_method_and_is_one() -> None:
    one = Buffer()
    assert one.grow._method(one, 2) == 3  # type: ignore[attr-defined]
    assert one.grow(1) == 4  # type: ignore[operator]
    assert inspect.ismethod(one.grow)
    assert one.grow == one.grow
    assert one.grow.__self__ is one
    assert one.grow.__doc__ == "Adds to it."
    assert list(inspect.signature(one.grow).parameters) == ["by"]
    assert inspect.iscoroutinefunction(LaterBuffer().grow)
    assert not inspect.iscoroutinefunction(one.grow)


def test_the_traceback_of_a_call_to_oneself_has_no_frame_of_ours() -> None:
    with pytest.raises(TypeError) as raised:
        Buffer().grow("much")  # type: ignore[operator]
    assert [entry.path.name for entry in raised.traceback] == [
        Path(__file__).name, Path(__file__).name,
    ]  # fmt: skip


def test_the_address_of_an_actor_that_is_known_by_its_name() -> None:
    address = ActorAddr(addr="local:0", proc_name="test", actor_name="actor")
    assert (address.uid, address.pid, address.label) == ("actor", "actor", "actor")
    assert address.proc_id == "test@inproc://0"
    assert str(address) == "actor.test@inproc://0"
    assert address.is_root
    assert ActorAddr.from_string(str(address)) == address
    numbered = ActorAddr("ipc:///tmp/a@b", "proc", "dotted.name", "1f")
    assert str(numbered) == "dotted.name<1f>.proc@ipc:///tmp/a@b"
    assert ActorAddr.from_string(str(numbered)) == numbered
    assert not numbered.is_root


@pytest.mark.long
def test_remote_functions_answer_into_a_port() -> None:
    pytest.importorskip("torch")

    @monarch.remote(propagate="inspect")
    def number() -> int:
        return 7

    @monarch.remote(propagate="inspect")
    def fails() -> int:
        raise ValueError("not today")

    port, receiver = Channel[Any].open()
    procs = this_host().spawn_procs({"gpus": 2})
    with procs.activate():
        send(number, (), {}, port)
        send(number, (), {}, port, selection="choose")
        assert [receiver.recv().get(timeout=SECONDS) for _ in range(3)] == [7, 7, 7]
        send(fails, (), {}, port=port)
        for _ in range(2):
            with pytest.raises(Exception, match="failed asynchronously"):
                receiver.recv().get(timeout=SECONDS)
    with pytest.raises(ValueError, match="selection must be"):
        send(number, (), {}, port, selection="some")
    procs.stop().get(timeout=SECONDS)


def test_a_limit_interrupts_a_thread_and_only_while_it_lasts() -> None:
    raised: list[type[BaseException]] = []

    def spin() -> None:
        try:
            with thread_timeout.ThreadTimeout(0.02):
                while True:
                    pass
        except thread_timeout.ThreadTimeoutError as error:
            raised.append(type(error))

    thread = threading.Thread(target=spin)
    thread.start()
    thread.join(SECONDS)
    assert raised == [thread_timeout.ThreadTimeoutError]
    limit = thread_timeout.ThreadTimeout(SECONDS)
    with limit, pytest.raises(RuntimeError, match="inside another"):
        thread_timeout.ThreadTimeout(1).__enter__()
    with pytest.raises(RuntimeError, match="serves once"):
        limit.__enter__()
    with pytest.raises(ValueError, match="positive"):
        thread_timeout.ThreadTimeout(0)


@pytest.mark.parametrize(
    "line",
    [
        "import monarch._src.job._job_sidecar_worker as worker; worker.main",
        "from monarch._src.job.job_components import JobComponent, JobComponents, MountComponent",
        "from monarch._src.job.process_guard import _Shutdown, _wait_for_socket",
        "from monarch._src.job.mount_config import Mounts",
        "from monarch._src.job import _slurm_batch; _slurm_batch.subprocess.run",
        "from monarch._src.job.job import BashActor, stop_job_sidecar",
        "from monarch._rust_bindings.monarch_hyperactor.pytokio import Handle, is_tokio_thread",
        "from monarch._src.spmd.host_mesh import _IN_PAR, _spawn_worker_process as start; start",
        "from monarch.tools.commands import apply_job, exec_on_job, load_current_job, MONARCH_DIR",
        "from monarch.tools.colors import CYAN, ENDC",
        "from monarch._src.job._telemetry_query_client import QueryEngineClient as E; E.query",
        "from monarch.experimental.thread_timeout import ThreadTimeout",
        "from monarch import mast_reserve",
    ],
)
def test_a_name_that_a_program_imports(line: str) -> None:
    exec(line, {})


def test_inner_parts_say_so_when_they_are_used() -> None:
    from monarch._src.job.process_guard import _wait_for_socket  # type: ignore[import-untyped]

    with pytest.raises(NotImplementedError, match="inner part of Monarch's runtime"):
        _wait_for_socket("path")
    with pytest.raises(NotImplementedError, match="ProcessJob on this machine"):
        monarch.mast_reserve(2)  # type: ignore[attr-defined]


def test_the_roles_of_a_torchrun_job() -> None:
    from monarch._src.job.spmd import _parse_torchrun  # type: ignore[import-untyped]

    words = ["--nnodes=2", "--nproc-per-node=8", "-m", "train", "--lr", "0.1"]
    wanted = (["-m", "train", "--lr", "0.1"], 8)
    assert _parse_torchrun([{"entrypoint": "torchrun", "args": words}]) == wanted
    assert _parse_torchrun([{"entrypoint": "a.sh", "args": ["torchrun", *words]}]) == wanted
    with pytest.raises(ValueError, match="one role"):
        _parse_torchrun([])


def test_a_worker_needs_a_port_that_others_know() -> None:
    for transport in ("tcp", "metatls", "metatls-hostname"):
        with pytest.raises(ValueError, match="monarch_port must be an explicit"):
            start_worker(transport)
    with pytest.raises(ValueError, match="unsupported transport"):
        start_worker("bogus")


def test_monarchs_command_line_is_a_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(command_line, "exec_on_job", lambda cmd, **more: asked.append((cmd, more)))
    parser = command_line.get_parser()
    args = parser.parse_args(["exec", "--per-host", "gpus=2", "-e", "A=b", "python", "t.py"])
    args.func(args)
    assert asked[0][0] == ["python", "t.py"]
    assert asked[0][1]["per_host"] == {"gpus": 2}
    assert asked[0][1]["env"] == ["A=b"]
    assert "Job reuse:" in parser.format_help()
    with pytest.raises(SystemExit):
        parser.parse_args(["exec", "--all", "--mesh", "workers", "echo"])


JOB = """
from monarch.job import ProcessJob
job = ProcessJob({"workers": 1})
"""


def test_commands_of_monarch_as_functions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine_070.py").write_text(JOB)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    from monarch.tools import commands  # type: ignore[attr-defined]

    with pytest.raises(JobError):
        commands.load_current_job()
    commands.context_use("other")
    commands.context_ls()
    assert "* other" in capfd.readouterr().out
    commands.apply_job("mine_070.job")
    assert commands.exec_on_job(["sh", "-c", 'echo "$MINE"'], env=["MINE=yours"]) == 0
    assert "yours" in capfd.readouterr().out
    assert commands.exec_on_job(["sh", "-c", "exit 3"], run_all=True) == 3
    with pytest.raises(ValueError, match="not found"):
        commands.exec_on_job(["true"], mesh_name="learners")
    with pytest.raises(ValueError, match="KEY=VALUE"):
        commands.exec_on_job(["true"], env=["MINE"])
    commands.context_rm("other")
    assert "other" not in commands.contexts.all_contexts()


class OwnJob(JobTrait):
    """This host, as an allocation that costs nothing."""

    def _create(self, client_script: str | None) -> None: ...

    def _state(self) -> JobState:
        return JobState({"hosts": this_host()})

    def _kill(self) -> None: ...

    def can_run(self, spec: JobTrait) -> bool:
        return False


def test_a_block_of_a_program_becomes_a_trace(tmp_path: Path) -> None:
    job = OwnJob()
    assert JobTrait.apply_id is None
    with pytest.raises(RuntimeError, match="enable_telemetry"):
        job.profile()
    job.enable_telemetry(TelemetryConfig())
    with pytest.raises(RuntimeError, match="call `state"):
        job.profile()
    procs = job.state(cached_path=None).hosts.spawn_procs()
    one = procs.spawn("one", Buffer)
    one.rank.call_one().get(timeout=SECONDS)
    with job.profile(on_trace_ready=lambda done: done.export_perfetto_trace(tmp_path / "t.json")):
        one.grow.call_one(1).get(timeout=SECONDS)
    text = (tmp_path / "t.json").read_text()
    assert '"grow"' in text
    assert '"rank"' not in text.replace('"rank":', "")
    rows = job.telemetry_query_client().query("SELECT count(*) AS n FROM actors", timeout=SECONDS)
    assert rows["rows"][0]["n"] >= 1
    procs.stop().get(timeout=SECONDS)
    job.kill()
    with pytest.raises(RuntimeError, match="does not run"):
        job.telemetry_query_client()


def test_queries_take_monarchs_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "question.sql").write_text("SELECT 1 AS one")

    monkeypatch.chdir(tmp_path)

    def asked(*words: str, text: str = "") -> str:
        run = CliRunner().invoke(cli, ["query", "--run", "none", *words], input=text)
        return f"{run.output} {run.exception}"

    assert "not both" in asked("SELECT 1", "-f", "question.sql")
    assert "is not a duration" in asked("-", "--timeout", "soon", text="SELECT 1")
    assert "no run" in asked("-f", "question.sql", "--format", "jsonl")
    assert "no run" in asked("-", "--timeout", "1m", text="SELECT 1")
    told = CliRunner().invoke(cli, ["tui", "--addr", "host:1729"]).output
    assert "monarch top" in told
    assert "tui" not in CliRunner().invoke(cli, ["--help"]).output
