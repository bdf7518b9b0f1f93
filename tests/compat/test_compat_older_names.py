"""Names and addresses of older releases, and the list of public names."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from typing import Any

import psutil
import pytest

import monarch.actor
from monarch._rust_bindings.monarch_hyperactor.alloc import AllocConstraints, AllocSpec
from monarch.actor import (
    Actor,
    BindSpec,
    ChannelTransport,
    Extent,
    HostMesh,
    ProcMesh,
    attach,
    enable_transport,
    endpoint,
    local_proc_mesh,
    proc_mesh,
    this_host,
)
from monarch.actor.alloc import (
    LocalAllocator,
    ProcessAllocator,
    RemoteAllocator,
    StaticRemoteAllocInitializer,
)
from monarch.actor.endpoint import concurrent_endpoint
from tests.actors import Echo

SECONDS = 60.0

UPSTREAM = """
    Accumulator Actor ActorError current_actor_name as_endpoint current_rank current_size
    concurrent_endpoint endpoint Future Point ProcMesh ProcId Channel send shutdown_context
    ValueMesh get_or_spawn_controller this_host this_proc default_bootstrap_cmd HostMesh context
    hosts_from_config Port PortReceiver Endpoint Extent run_worker_loop_forever attach_to_workers
    attach enable_transport Context ChannelTransport unhandled_fault_hook MeshFailure config Uid
    local_proc_mesh proc_mesh ActorMesh Instance SupervisionError RankedPortReceiver ActorAddr
    BindSpec BootstrapCommand Slice Shape Region MeshTrait
    returns_future run_worker_loop_until_shutdown start_worker_loop_forever get_meter span traced
"""


@pytest.mark.parametrize("name", UPSTREAM.split())
def test_a_name_that_programs_for_monarch_import(name: str) -> None:
    assert name in monarch.actor.__all__
    assert hasattr(monarch.actor, name)


def test_every_public_name_is_there() -> None:
    missing = [name for name in monarch.actor.__all__ if not hasattr(monarch.actor, name)]
    assert missing == []
    assert concurrent_endpoint is monarch.actor.concurrent_endpoint


@pytest.mark.parametrize("name", ["monarch.actor_mesh", "monarch.proc_mesh"])
def test_deprecated_modules_have_the_names_and_say_where_they_are(name: str) -> None:
    sys.modules.pop(name, None)
    with pytest.warns(DeprecationWarning, match=r"import from monarch\.actor"):
        module = importlib.import_module(name)
    assert module.Actor is monarch.actor.Actor


def test_what_supervision_raises_has_its_older_address() -> None:
    module = importlib.import_module("monarch._rust_bindings.monarch_hyperactor.supervision")
    assert module.SupervisionError is monarch.actor.SupervisionError


def _set_flavour() -> None:
    os.environ["FLAVOUR"] = "from setup"


@pytest.mark.long_but(1)
@pytest.mark.parametrize("allocator", [LocalAllocator(), ProcessAllocator("program", [], {})])
def test_procs_of_an_allocation_on_this_machine(allocator: Any) -> None:
    async def program() -> list[Any]:
        alloc = allocator.allocate(AllocSpec(AllocConstraints(), hosts=1, gpus=2))
        procs = await ProcMesh.from_alloc(alloc, setup=_set_flavour)
        assert procs.sizes == {"hosts": 1, "gpus": 2}
        echo = await procs.spawn("echo", Echo)
        return list((await echo.environment.call("FLAVOUR")).values())

    import asyncio

    assert asyncio.run(program()) == ["from setup"] * 2


def test_procs_of_an_allocation_on_other_hosts(program: Any, tmp_path: Any) -> None:
    urls = [f"ipc://{tmp_path}/{number}" for number in range(3)]
    serve = "from monarch.actor import run_worker_loop_forever as serve; serve(address={!r}, ca='')"
    for url in urls[:2]:
        program(serve.format(url))
    allocator = RemoteAllocator("world", StaticRemoteAllocInitializer(*urls[:2]))
    alloc = allocator.allocate(AllocSpec(AllocConstraints(), hosts=2, gpus=2))
    assert alloc.initialized.get(timeout=SECONDS) is True
    procs = ProcMesh.from_alloc(alloc)
    assert procs.sizes == {"hosts": 2, "gpus": 2}
    pids = procs.spawn("echo", Echo).pid.call().get(timeout=SECONDS).values()
    assert len(set(pids)) == 4
    with pytest.raises(ValueError, match="3 hosts were asked for, and 2 are known"):
        allocator.allocate(AllocSpec(AllocConstraints({"tier": "gpu"}), hosts=3, gpus=1))
    monarch.actor.shutdown_context().get(timeout=SECONDS)


@pytest.mark.long_but(1)
@pytest.mark.parametrize("make", [proc_mesh, local_proc_mesh])
def test_the_older_way_to_procs_takes_a_setup(make: Any) -> None:
    procs = make(gpus=2, setup=_set_flavour, env={"OLD": "1"})
    assert procs.sizes == {"hosts": 1, "gpus": 2}
    echo = procs.spawn("echo", Echo)
    assert echo.environment.call("FLAVOUR").get(timeout=SECONDS).values() == ["from setup"] * 2
    assert echo.environment.call("OLD").get(timeout=SECONDS).values() == ["1"] * 2


class Shelf(Actor):
    @endpoint
    def get(self, name: str) -> str:
        return f"{name} from the shelf"


def test_a_mesh_is_got_where_no_loop_runs() -> None:
    host = this_host()
    assert host.get(timeout=SECONDS) is host
    procs = proc_mesh(gpus=2)
    assert procs.get(timeout=SECONDS) is procs
    echo = procs.spawn("echo", Echo)
    assert echo.get() is echo
    assert echo.slice(gpus=0).get(timeout=SECONDS).echo.call_one(3).get() == 3
    shelf = procs.slice(hosts=0, gpus=0).spawn("shelf", Shelf)
    assert shelf.get.call_one("a book").get(timeout=SECONDS) == "a book from the shelf"


def test_what_is_not_up_is_not_got() -> None:
    procs = this_host().spawn_procs(bootstrap=lambda: threading.Event().wait(SECONDS))
    with pytest.raises(TimeoutError):
        procs.get(timeout=0.01)
    procs.stop().get(timeout=SECONDS)


# What has to be said first


def test_transports_are_named_before_anything_else(program: Any) -> None:
    run = program("""
        from monarch.actor import ChannelTransport, enable_transport, this_host
        enable_transport("ipc")
        enable_transport(ChannelTransport.Unix)
        for other in ("tcp", "tcp://127.0.0.1:0"):
            try:
                enable_transport(other)
            except RuntimeError as error:
                print("refused", str(error)[:43])
        this_host().spawn_procs().initialized.get(timeout=30)
        enable_transport("ipc")
        try:
            enable_transport("tcp")
        except RuntimeError as error:
            print("late", "before any other calls" in str(error))
    """)
    assert run.wait() == 0
    assert run.lines == ["refused Only one transport type may be enabled at one "[:51]] * 2 + [
        "late True"
    ]


def test_what_is_no_transport_is_refused() -> None:
    with pytest.raises(ValueError, match="not an address"):
        enable_transport("carrier pigeon")
    with pytest.raises(NotImplementedError, match="only inside Meta"):
        enable_transport("metatls")
    assert BindSpec("tcp://localhost:1") != BindSpec(ChannelTransport.TcpWithHostname)
    assert BindSpec(ChannelTransport.Unix) == BindSpec(ChannelTransport.Unix)


def test_attach_comes_first_and_may_be_repeated(program: Any, tmp_path: Any) -> None:
    url = f"ipc://{tmp_path}/host"
    program(f"from monarch.actor import run_worker_loop_forever as w; w(address={url!r}, ca='')")
    run = program(f"""
        from monarch.actor import attach, attach_to_workers, this_host
        attach({url!r})
        attach({url!r})
        try:
            attach("ipc://{tmp_path}/other")
        except RuntimeError as error:
            print("refused")
        hosts = attach_to_workers(workers=[{url!r}], ca="")
        hosts.spawn_procs().initialized.get(timeout=30)
        this_host().spawn_procs().initialized.get(timeout=30)
        print("done")
    """)
    assert run.wait() == 0
    assert run.lines == ["refused", "done"]


def test_attach_is_too_late_in_a_program_that_has_begun() -> None:
    this_host().spawn_procs().initialized.get(timeout=SECONDS)
    with pytest.raises(RuntimeError, match="before the first"):
        attach("ipc:///not/there")


def test_hosts_to_play_with_end_with_the_program(program: Any) -> None:
    run = program("""
        import os
        from monarch.actor import hosts_from_config
        from tests.actors import Echo
        hosts = hosts_from_config("toy")
        assert hosts.sizes == {"hosts": 2}
        echo = hosts.spawn_procs({"gpus": 2}).spawn("echo", Echo)
        print(len(set(echo.pid.call().get(timeout=30).values())))
    """)
    assert run.wait() == 0
    assert run.lines == ["4"]
    assert run.errors == []


def test_hosts_to_play_with_outlive_the_thread_that_made_them(program: Any) -> None:
    run = program("""
        import threading
        from monarch.actor import hosts_from_config
        made = []
        def make():
            made.append(hosts_from_config("toy"))
            made[0].initialized.get(timeout=60)
        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        procs = made[0].spawn_procs()
        print(procs.initialized.get(timeout=60))
    """)
    assert run.wait(120) == 0, run.story()
    assert run.lines == ["True"]


@pytest.mark.long
def test_hosts_to_play_with_end_with_a_program_that_is_killed(program: Any) -> None:
    run = program("""
        # A new Python: its children are counted.
        import time
        from monarch.actor import hosts_from_config
        hosts_from_config("toy").initialized.get(timeout=60)
        print("up", flush=True)
        time.sleep(100)
    """)
    run.line("up")
    hosts = psutil.Process(run.pid).children()
    assert len(hosts) == 2
    run.process.kill()
    _, left = psutil.wait_procs(hosts, timeout=20)
    assert not left


def test_a_worker_loop_in_the_background(program: Any, tmp_path: Any) -> None:
    url = f"ipc://{tmp_path}/host"
    worker = program(f"""
        from monarch.actor import start_worker_loop_forever
        start_worker_loop_forever(address={url!r}).get()
        print("over")
    """)
    hosts = monarch.actor.attach_to_workers(workers=[url])
    echo = hosts.spawn_procs().spawn("echo", Echo)
    assert echo.echo.call_one(1).get(timeout=SECONDS) == 1
    hosts.shutdown().get(timeout=SECONDS)
    assert worker.wait() == 0
    assert worker.lines == ["over"]
    assert worker.errors == []


def test_a_worker_loop_in_the_background_reports_what_went_wrong(tmp_path: Any) -> None:
    start = monarch.actor.start_worker_loop_forever
    with pytest.raises(ValueError, match="address of a host agent"):
        start(address="nowhere")
    future = start(address=f"ipc://{tmp_path}/not/there/host")
    with pytest.raises(Exception, match="not/there"):
        future.get(timeout=SECONDS)


def test_a_shutdown_takes_a_time_limit() -> None:
    this_host().spawn_procs().initialized.get(timeout=SECONDS)
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="host_timeout must be finite"):
            monarch.actor.shutdown_context(wrong)
    monarch.actor.shutdown_context(host_timeout=0.5).get(timeout=SECONDS)


def test_hosts_of_an_allocator() -> None:
    """As libraries of the second generation of meshes ask for them."""
    hosts = HostMesh.allocate_nonblocking(
        name="alloc_0", extent=Extent(["hosts"], [1]), allocator=LocalAllocator()
    )
    procs = hosts.spawn_procs(per_host={"procs": 2})
    echo = procs.spawn("echo", Echo)
    assert len(set(echo.pid.call().get(timeout=SECONDS).values())) == 2
    procs.stop().get(timeout=SECONDS)


def test_too_few_hosts_for_an_extent_are_an_error() -> None:
    allocator = RemoteAllocator("world", StaticRemoteAllocInitializer("tcp!127.0.0.1:1"))
    with pytest.raises(ValueError, match="2 hosts were asked for, and 1 are known"):
        HostMesh.allocate_nonblocking(
            "alloc_0", Extent(["hosts", "no_dim"], [2, 1]), allocator, AllocConstraints({"a": "b"})
        )
