"""Registrations end, whoever ends them and however; nothing is left of them."""

from __future__ import annotations

import ctypes
import dataclasses
import errno
import gc
import mmap
import os
import random
import sys
from typing import Any, NamedTuple

import pytest

from monarch.actor import shutdown_context, this_host
from monarch.config import configured
from monarch.rdma import (
    RDMABuffer,
    RemoteMemoryError,
    get_rdma_backend,
    is_ibverbs_available,
    is_rdma_available,
)
from monarch.rdma.memory.region import Part
from monarch.rdma.memory.registry import registry
from monarch.rdma.ways.process_vm import ProcessVm
from tests.rdma.owners import Owner, what_is_left
from tests.support import Program, wait_for

SECONDS = 60.0


def num_registered() -> int:
    gc.collect()
    registry().sweep()
    return len(registry())


def test_memory_that_nothing_refers_to_is_let_go_of() -> None:
    RDMABuffer(bytearray(10))
    assert num_registered() == 0
    data = bytearray(10)
    buffer = RDMABuffer(memoryview(data)[2:5])
    assert num_registered() == 1
    del data
    assert num_registered() == 1
    del buffer
    assert num_registered() == 0


def test_a_view_of_the_users_alone_keeps_the_memory_registered() -> None:
    view = memoryview(bytearray(b"abc"))
    reference = RDMABuffer(view)[0:3]
    assert num_registered() == 1
    into = bytearray(3)
    reference.read_into(into).get()
    assert into == b"abc"
    del view
    assert num_registered() == 0
    with pytest.raises(RemoteMemoryError, match="freed"):
        reference.read_into(into).get()


class Shown:
    """Has an array's interface, and no buffer's."""

    def __init__(self, array: Any) -> None:
        self.array = array

    @property
    def __array_interface__(self) -> Any:
        return self.array.__array_interface__


@pytest.mark.parametrize(
    "kind", ["numpy", "mmap", "ctypes", "tensor", "torch of numpy", "numpy of torch", "interface"]
)
def test_what_may_be_registered(kind: str) -> None:
    if kind == "numpy":
        np = pytest.importorskip("numpy")
        data: Any = np.zeros((4, 4), np.uint8)
        buffer = RDMABuffer(data[1:3, 1:3])
    elif kind == "numpy of torch":
        torch = pytest.importorskip("torch")
        data = torch.zeros(4, 4)
        buffer = RDMABuffer(memoryview(data.numpy().view("uint8"))[1:3])
    elif kind == "interface":
        np = pytest.importorskip("numpy")
        data = np.asarray(Shown(np.zeros(8, np.uint8)))
        buffer = RDMABuffer(memoryview(data)[2:])
    elif kind == "mmap":
        data = mmap.mmap(-1, 4096)
        buffer = RDMABuffer(memoryview(data))
    elif kind == "ctypes":
        data = (ctypes.c_int * 4)()
        buffer = RDMABuffer(data)
    else:
        torch = pytest.importorskip("torch")
        data = torch.zeros(4, 4)
        if kind == "torch of numpy":
            data = torch.from_numpy(data.numpy())
        buffer = RDMABuffer(data[:, 1])
    reference = buffer[0 : buffer.size()]
    reference.write_from(bytes([1]) * reference.size()).get()
    into = bytearray(reference.size())
    reference.read_into(into).get()
    assert into == bytes([1]) * reference.size()
    del buffer
    assert num_registered() == 1
    del data
    assert num_registered() == 0


def test_nothing_else_may_be_registered() -> None:
    with pytest.raises(ValueError, match="size 0"):
        RDMABuffer(memoryview(b""))
    with pytest.raises(TypeError, match="a tensor or a memoryview"):
        RDMABuffer("text")
    torch = pytest.importorskip("torch")
    with pytest.raises(ValueError, match="size 0"):
        RDMABuffer(torch.empty(0, 3))
    with pytest.raises(TypeError, match="on meta has no memory of its own"):
        RDMABuffer(torch.empty(3, device="meta"))
    lazy = torch.ones(3, dtype=torch.complex64).conj()
    for one in (lazy, lazy.imag):
        with pytest.raises(TypeError, match="not what lies in memory"):
            RDMABuffer(one)
    data = torch.arange(3.0)
    with pytest.raises(ValueError, match="share one place"):
        RDMABuffer(data).read_into(torch.zeros(1).expand(3))
    expanded = RDMABuffer(torch.ones(1).expand(3))
    expanded.read_into(data).get()
    assert data.tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match="share one place"):
        expanded.write_from(data)
    with pytest.raises(TypeError, match="sparse"):
        RDMABuffer(torch.eye(3).to_sparse())


def test_what_leads_to_other_hosts_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with configured(rdma_disable_ibverbs=True):
        assert not is_ibverbs_available()
        assert get_rdma_backend() == "tcp"
        with pytest.warns(DeprecationWarning, match="is_ibverbs_available"):
            assert not is_rdma_available()
        with configured(rdma_allow_tcp_fallback=False):
            assert get_rdma_backend() == "none"
            RDMABuffer(bytearray(1))  # Its host needs no device.
            monkeypatch.setattr("monarch.rdma.buffer.is_supported", lambda: False)
            with pytest.raises(RuntimeError, match="rdma_allow_tcp_fallback=True"):
                RDMABuffer(bytearray(1))


def test_timeouts_are_numbers_in_range() -> None:
    data = bytearray(8)
    buffer = RDMABuffer(data)
    for wrong in (-1, 2**70):
        with pytest.raises(OverflowError):
            buffer.read_into(bytearray(8), timeout=wrong)
    with pytest.raises(TypeError):
        buffer.read_into(bytearray(8), timeout="soon")  # type: ignore[arg-type]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:no RDMA device leads")
@pytest.mark.parametrize("way", ["process_vm", "tcp"])
def test_a_thousand_random_lives_leave_nothing(way: str, faults: list[Any]) -> None:
    """Of registrations that are read, written, dropped and freed, and of owners that die."""
    rng = random.Random(4)
    live: list[tuple[Any, str, RDMABuffer, bytes]] = []

    def new_owner(number: int) -> Any:
        return this_host().spawn_procs({"gpus": 1}).spawn(f"owner{number}", Owner)

    owners = [new_owner(0), new_owner(1)]

    def left() -> tuple[Left, Left]:
        """In the owner that lives throughout, and here."""
        gc.collect()
        return Left(*owners[0].left.call_one().get(timeout=SECONDS)), Left(*what_is_left())

    def lose_an_owner(number: int) -> None:
        doomed = owners[1]
        doomed.die.broadcast()
        wait_for(lambda: len(faults) == number, timeout=SECONDS)
        lost = [one for one in live if one[0] is doomed]
        live[:] = [one for one in live if one[0] is not doomed]
        for _, _, buffer, data in lost:
            with pytest.raises(RemoteMemoryError, match=r"ended|gone"):
                buffer.read_into(bytearray(len(data)), timeout=SECONDS).get()
        owners[1] = new_owner(number + 1)

    def use(name: str) -> None:
        action = rng.choice(["make", "make", "read", "read", "write", "drop", "free", "forget"])
        if action == "make" or not live:
            owner, data = rng.choice(owners), rng.randbytes(rng.choice([8, 5000, 70_000]))
            made = owner.make.call_one(name, data).get(timeout=SECONDS)
            live.append((owner, name, made, data))
            return
        place = rng.randrange(len(live))
        owner, name, buffer, data = live[place]
        into = bytearray(len(data))
        if action == "read":
            buffer.read_into(into, timeout=SECONDS).get()
            assert into == data
        elif action == "write":
            live[place] = owner, name, buffer, data[::-1]
            buffer.write_from(data[::-1], timeout=SECONDS).get()
        elif action in ("drop", "free"):
            live.pop(place)
            buffer.drop().get(timeout=SECONDS)
            with pytest.raises(RemoteMemoryError, match="dropped"):
                buffer.read_into(into, timeout=SECONDS).get()
            owner.free.call_one(name).get(timeout=SECONDS)
        else:
            live.pop(place)
            owner.free.call_one(name).get(timeout=SECONDS)

    with configured(rdma_same_host=way == "process_vm"):
        deaths = 0
        for number in range(1000):
            if number % 100 == 50:
                deaths += 1
                lose_an_owner(deaths)
            use(f"b{number}")
            if number == 200:
                before = left()
        for owner, name, _, _ in live:
            owner.free.call_one(name).get(timeout=SECONDS)
        live.clear()
        after = left()
    assert after[0].registered == 0
    for then, now in zip(before, after, strict=True):
        # Streams are kept: a few a process. So are threads for a while, and their stacks.
        assert now.descriptors <= then.descriptors + 4, (before, after)
        assert now.mappings <= then.mappings + 16, (before, after)
        assert now.resident <= then.resident + 20 * 2**20, (before, after)


class Left(NamedTuple):
    """What one process has: numbers, and bytes of memory."""

    registered: int
    descriptors: int
    mappings: int
    resident: int


def test_a_client_that_comes_again_registers_anew() -> None:
    data = bytearray(b"abc")
    first = RDMABuffer(data)
    reference = first[:]
    shutdown_context().get(timeout=SECONDS)
    second = RDMABuffer(data)
    into = bytearray(3)
    second.read_into(into).get()
    assert into == b"abc"
    # What an earlier system call failed with says nothing of this one.
    ctypes.set_errno(errno.EPERM)
    with pytest.raises(RemoteMemoryError):
        reference.read_into(into, timeout=1).get()


def test_another_table_at_the_same_address_is_not_a_refusal_of_the_kernel() -> None:
    table = bytearray(64)
    address = ctypes.addressof(ctypes.c_char.from_buffer(table))
    data = bytearray(b"abc")
    buffer = RDMABuffer(data)
    region = buffer._part.region
    stale = dataclasses.replace(region, table=region.table._replace(address=address))
    ctypes.set_errno(errno.EPERM)
    with pytest.raises(RemoteMemoryError, match="its process has given up all"):
        ProcessVm().read(Part(stale, 0, 3), [], 1e9)


def test_a_forked_child_is_not_the_owner() -> None:
    data = bytearray(b"abc")
    buffer = RDMABuffer(data)
    child = os.fork()
    if child == 0:
        del buffer, data
        gc.collect()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    into = bytearray(3)
    buffer.read_into(into).get()
    assert into == b"abc"


@pytest.mark.long_but(1)
@pytest.mark.parametrize("module", ["torch", "numpy"])
def test_programs_need_neither_torch_nor_numpy(module: str, own_program: Any) -> None:
    program: Program = own_program(
        f"""
        import sys
        sys.modules[{module!r}] = None
        from monarch.actor import Actor, endpoint, this_host
        from monarch.rdma import RDMABuffer, get_rdma_backend, is_ibverbs_available

        class Server(Actor):
            def __init__(self):
                self.data = bytearray(b"weights")

            @endpoint
            async def handle(self):
                return RDMABuffer(memoryview(self.data))

        if __name__ == "__main__":
            server = this_host().spawn_procs({{"gpus": 1}}).spawn("server", Server)
            buffer = server.handle.call_one().get()
            into = memoryview(bytearray(7))
            buffer.read_into(into, timeout=60).get()
            print("read", bytes(into).decode(), get_rdma_backend(), is_ibverbs_available())
        """
    )
    assert program.line("read") == "weights tcp False", program.story()
    assert program.wait() == 0
    assert sys.modules.get("monarch.rdma")


@pytest.fixture
def own_program() -> Any:
    programs: list[Program] = []

    def run(script: str) -> Program:
        programs.append(Program.of_script(script))
        return programs[-1]

    yield run
    for program in programs:
        program.close()
