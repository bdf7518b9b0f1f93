"""What libraries written for Monarch import, from its public homes and its private ones."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import monarch.actor
from monarch.actor import Actor, Shape, Slice, endpoint, this_host
from monarch.compat.addresses import ADDRESSES
from monarch.compat.finder import HEADS, SINGLE

SECONDS = 60.0


@pytest.mark.parametrize(
    "name", sorted(set(ADDRESSES) - {"monarch.actor_mesh", "monarch.proc_mesh"})
)
def test_an_address_has_all_its_names(name: str) -> None:
    module = importlib.import_module(name)
    missing = [one for one in ADDRESSES[name].names() if not hasattr(module, one)]
    assert missing == []


@pytest.mark.parametrize(
    "line",
    [
        "from monarch._src.actor.actor_mesh import Actor, ActorMesh, Channel, Port, context",
        "from monarch._src.actor.actor_mesh import current_rank, Extent, RankedPortReceiver",
        "from monarch._src.actor.actor_mesh import configure",
        "from monarch._src.actor import actor_mesh; actor_mesh._context.get()",
        "import monarch._src.actor.host_mesh; monarch._src.actor.host_mesh.this_host",
        "from monarch._src.actor.endpoint import endpoint, EndpointProperty, Extent",
        "from monarch._src.actor.host_mesh import create_local_host_mesh, this_proc, HostMesh",
        "from monarch._src.actor.proc_mesh import get_or_spawn_controller, proc_mesh, ProcMesh",
        "from monarch._src.actor.shape import Extent, NDSlice, Shape, MeshTrait",
        "from monarch._src.actor.allocator import RemoteAllocator, TorchXRemoteAllocInitializer",
        "from monarch._src.actor.bootstrap import attach_to_workers, run_worker_loop_forever",
        "from monarch._src.actor.telemetry import TracingForwarder, get_monarch_tracer",
        "from monarch._src.actor.future import Future",
        "from monarch._src.actor.code_sync.auto_reload import AutoReloader",
        "from monarch._src.job.job import JobState, JobTrait, ProcessState, SSHJob",
        "from monarch._src.job.process import ProcessJob",
        "from monarch._src.spmd.actor import SPMDActor",
        "from monarch._src.spmd.host_mesh import host_mesh_from_store",
        "from monarch._rust_bindings.monarch_hyperactor.alloc import AllocConstraints, AllocSpec",
        "from monarch._rust_bindings.monarch_hyperactor.channel import ChannelAddr",
        "from monarch._rust_bindings.monarch_hyperactor.channel import ChannelTransport",
        "from monarch._rust_bindings.monarch_hyperactor.config import configure",
        "from monarch._rust_bindings.monarch_hyperactor.proc import ActorAddr, ActorId",
        "from monarch._rust_bindings.monarch_hyperactor.shape import Extent, Shape, Slice",
        "from monarch._rust_bindings.monarch_hyperactor.supervision import SupervisionError",
        "from monarch._rust_bindings import has_tensor_engine; assert has_tensor_engine()",
        "from monarch.tools import commands; from monarch.tools.components import hyperactor",
        "from monarch.tools.commands import create, get_or_create, info, kill",
        "import monarch.tools.config.workspace as home; home.Workspace",
        "from monarch.tools.config import CondaEnvironment, Config, Workspace",
        "from monarch.tools.utils import MONARCH_HOME, conda",
        "from monarch.utils import setup_env_for_distributed",
        "import monarch.tools.config; monarch.tools.config.workspace.Workspace",
        "import monarch._src.actor; monarch._src.actor.host_mesh.this_host",
        "from monarch._src.job.kubernetes import ImageSpec, _WORKER_BOOTSTRAP_SCRIPT as s; "
        "compile(s, 'pod', 'exec')",
        "from monarch._src.job.spmd import SPMDJob; from monarch._src.job.shell import shell",
        "from monarch.actor.concurrent import concurrent_endpoint",
        "from monarch._src.job.service_identity import new_service_proc_id, service_proc_addr",
        "from monarch._rust_bindings.monarch_hyperactor.actor import PythonMessage",
        "from monarch._rust_bindings.monarch_hyperactor.handle import Handle, WouldBlockRuntime",
        "from monarch._rust_bindings.monarch_hyperactor.pytokio import PythonTask, Shared",
        "from monarch._src.actor.proc_mesh import HyProcMesh, _get_bootstrap_args as g; g()",
    ],
)
def test_a_line_at_the_top_of_a_library(line: str) -> None:
    exec(line, {})


def test_names_are_those_of_the_public_homes() -> None:
    private = importlib.import_module("monarch._src.actor.actor_mesh")
    assert private.Actor is Actor
    config = importlib.import_module("monarch._src.actor.config")
    assert config is monarch.actor.config
    assert config.__spec__ is not None
    assert config.__spec__.name == "monarch.actor.config"


def test_what_is_not_there_is_an_import_error() -> None:
    for line in (
        "import monarch._src.nothing",
        "from monarch._src.actor.actor_mesh import nothing",
        # Libraries look whether there is any, and have another way where there is none.
        "from monarch._src.actor.meta.allocator import MastAllocator",
    ):
        with pytest.raises(ImportError):
            exec(line, {})


def test_inner_parts_of_monarchs_runtime_are_names_that_refuse() -> None:
    from monarch._rust_bindings.monarch_hyperactor.mailbox import (  # type: ignore[import-untyped]
        PortRef,
        UndeliverableMessageEnvelope,
    )
    from monarch._rust_bindings.monarch_hyperactor.pytokio import (  # type: ignore[import-untyped]
        PythonTask,
    )

    def annotated(port: PortRef | None, task: PythonTask[int]) -> PortRef: ...

    assert not isinstance(annotated, PortRef)
    assert not hasattr(PythonTask, "from_coroutine")
    assert UndeliverableMessageEnvelope is not PortRef
    with pytest.raises(NotImplementedError, match="PortRef is an inner part of Monarch's runtime"):
        PortRef("port")
    with pytest.raises(NotImplementedError, match=r"PythonTask.spawn is an inner part"):
        PythonTask.spawn()


def test_a_program_asks_for_its_client_without_making_one(program: Any) -> None:
    run = program("""
        from monarch._src.actor.actor_mesh import _client_context
        print(_client_context.try_get() is None)
        print(_client_context.get().actor_instance.name, _client_context.try_get() is not None)
    """)
    assert run.wait() == 0, run.story()
    assert run.lines == ["True", "root True"]


def test_the_finder_costs_an_import_of_the_package_nothing() -> None:
    code = "import sys, monarch; print(*(m for m in sys.modules if m.startswith('monarch')))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(run.stdout.split()) == {
        "monarch", "monarch.compat", "monarch.compat.finder", "monarch.offers", "monarch.version",
    }  # fmt: skip


class RoutedProperty(importlib.import_module("monarch._src.actor.endpoint").EndpointProperty):  # type: ignore[misc]
    """An endpoint that carries more, as a library has it."""

    def __init__(self, method: Any, propagator: Any, explicit: bool, *, router: str) -> None:
        super().__init__(method, propagator, explicit)
        self.router = router


class Service(Actor):
    @endpoint
    async def plain(self, x: int) -> int:
        return x + 1

    async def _routed(self, x: int) -> int:
        return x * 10

    routed = RoutedProperty(_routed, None, False, router="round robin")


def test_endpoints_of_a_librarys_own_kind() -> None:
    from monarch._src.actor.endpoint import EndpointProperty  # type: ignore[import-untyped]

    found = [name for name in dir(Service) if isinstance(getattr(Service, name), EndpointProperty)]
    assert found == ["plain", "routed"]
    assert Service.routed._method is Service._routed
    service = this_host().spawn_procs().spawn("service", Service)
    assert service.routed.call_one(4).get(timeout=SECONDS) == 40
    assert service.plain.call_one(4).get(timeout=SECONDS) == 5


def test_a_program_asks_whether_there_is_a_context_without_making_one(program: Any) -> None:
    run = program("""
        from monarch._src.actor import actor_mesh
        print(actor_mesh._context.get() is None)
        from monarch.actor import context
        context()
        print(actor_mesh._context.get().actor_instance.name)
    """)
    assert run.wait() == 0, run.story()
    assert run.lines == ["True", "root"]


def test_a_function_that_uses_a_private_module_travels() -> None:
    from monarch._src.actor import actor_mesh

    send = cloudpickle.loads(cloudpickle.dumps(lambda: actor_mesh.current_rank))
    assert send() is monarch.actor.current_rank


def test_local_hosts_of_a_shape(program: Any) -> None:
    run = program("""
        from monarch._src.actor.host_mesh import create_local_host_mesh, this_host
        from monarch._src.actor.shape import Extent
        from tests.actors import Echo
        hosts = create_local_host_mesh(Extent(["racks", "hosts"], [2, 1]))
        echo = hosts.spawn_procs().spawn("echo", Echo)
        print(hosts.sizes, len(set(echo.pid.call().get(timeout=30).values())))
        print(create_local_host_mesh() == this_host())
    """)
    assert run.wait() == 0, run.story()
    assert run.lines == ["{'racks': 2, 'hosts': 1} 2", "True"]


@pytest.mark.parametrize("name", ["create", "info", "kill", "get_or_create", "server_ready"])
def test_a_command_for_other_schedulers_says_what_to_use(name: str) -> None:
    from monarch.tools import commands  # type: ignore[attr-defined]

    def call() -> None:
        called = getattr(commands, name)("slurm:///1", *["config"] * (name == "get_or_create"))
        called.send(None)

    with pytest.raises(
        NotImplementedError, match=r"SlurmJob, KubernetesJob or RayJob on others.*attach_to_workers"
    ):
        call()


def test_shapes_without_a_mesh() -> None:
    from monarch._src.actor.shape import ShapeExt, iter_ranks

    shape = Shape(["hosts", "gpus"], Slice.new_row_major([2, 4]))
    assert ShapeExt.slice(shape, hosts=1, gpus=slice(1, 3)).ranks() == [5, 6]
    parts = [Slice(offset=0, sizes=[2], strides=[1]), Slice(offset=1, sizes=[2], strides=[1])]
    assert list(iter_ranks(parts)) == [0, 1, 2]


def test_the_home_folder_of_tools(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    from monarch.tools.utils import MONARCH_HOME, conda

    monkeypatch.setenv("MONARCH_HOME", str(tmp_path / "home"))
    assert MONARCH_HOME("out", "deep") == tmp_path / "home" / "out" / "deep"
    assert MONARCH_HOME("out").is_dir()
    monkeypatch.setenv("CONDA_PREFIX", "/envs/mine")
    assert (conda.active_env_dir(), conda.active_env_name()) == ("/envs/mine", "mine")
    monkeypatch.delenv("CONDA_PREFIX")
    assert conda.active_env_name() is None


def test_all_addresses_are_where_the_finder_looks() -> None:
    assert {address for address in ADDRESSES if address.split(".")[1] not in HEADS} == SINGLE


def test_a_folder_that_an_older_version_left_hides_nothing(tmp_path: Path) -> None:
    """Removing a package leaves its bytecode, and Python takes any folder for a package."""
    (tmp_path / "_src/__pycache__").mkdir(parents=True)
    (tmp_path / "tools/config/__pycache__").mkdir(parents=True)
    script = (
        "import sys, monarch, monarch.tools\n"
        "monarch.__path__.insert(0, sys.argv[1])\n"
        "monarch.tools.__path__.insert(0, sys.argv[1] + '/tools')\n"
        "from monarch._src.actor.actor_mesh import Actor\n"
        "from monarch.tools.config import Workspace\n"
    )
    run = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True)
    assert run.returncode == 0, run.stderr.decode()
