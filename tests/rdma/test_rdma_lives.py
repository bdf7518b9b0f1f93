"""Registrations end, whoever ends them and however; nothing is left of them."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import shutdown_context, this_host
from monarch.config import configured
from monarch.rdma import RDMABuffer, RemoteMemoryError
from monarch.rdma.registry import registry
from tests.rdma.owners import Owner
from tests.support import Program, wait_for

SECONDS = 30


def num_registered() -> int:
    gc.collect()
    registry().sweep()
    return len(registry())


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


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


@pytest.mark.parametrize("kind", ["numpy", "mmap", "ctypes", "tensor", "torch of numpy"])
def test_what_may_be_registered(kind: str) -> None:
    if kind == "numpy":
        np = pytest.importorskip("numpy")
        data: Any = np.zeros((4, 4), np.uint8)
        buffer = RDMABuffer(data[1:3, 1:3])
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
    with pytest.raises(TypeError, match="sparse"):
        RDMABuffer(torch.eye(3).to_sparse())


def test_timeouts_are_numbers_in_range() -> None:
    data = bytearray(8)
    buffer = RDMABuffer(data)
    for wrong in (-1, 2**70):
        with pytest.raises(OverflowError):
            buffer.read_into(bytearray(8), timeout=wrong)
    with pytest.raises(TypeError):
        buffer.read_into(bytearray(8), timeout="soon")  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:no RDMA device leads")
@pytest.mark.parametrize("way", ["process_vm", "tcp"])
def test_a_thousand_random_lives_leave_nothing(way: str, faults: list[Any]) -> None:
    rng = random.Random(4)
    procs = this_host().spawn_procs({"gpus": 2})
    owners = [procs.slice(gpus=rank).spawn(f"owner{rank}", Owner) for rank in range(2)]
    live: list[tuple[Any, str, RDMABuffer, bytes]] = []

    def count() -> tuple[int, int]:
        one = owners[0]
        registered = one.num_registered.call_one().get(timeout=SECONDS)
        return registered, one.num_descriptors.call_one().get(timeout=SECONDS)

    def use(rounds: int) -> None:
        for number in range(rounds):
            action = rng.choice(["make", "make", "read", "read", "write", "drop", "free", "forget"])
            if action == "make" or not live:
                owner, data = rng.choice(owners), rng.randbytes(rng.choice([8, 5000, 70_000]))
                name = f"b{number}"
                made = owner.make.call_one(name, data).get(timeout=SECONDS)
                live.append((owner, name, made, data))
                continue
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
        use(100)
        before, memory = count(), resident_bytes()
        here = len(os.listdir("/proc/self/fd"))
        use(900)
        for owner, name, _, _ in live:
            owner.free.call_one(name).get(timeout=SECONDS)
        live.clear()
        # Streams are kept: a few a process.
        assert count()[0] == 0
        assert count()[1] <= before[1] + 4
        assert len(os.listdir("/proc/self/fd")) <= here + 4
        assert resident_bytes() < memory + 50 * 2**20
        doomed = owners[1].make.call_one("last", bytes(100)).get(timeout=SECONDS)
        owners[1].die.broadcast()
        wait_for(lambda: faults)
        with pytest.raises(RemoteMemoryError):
            doomed.read_into(bytearray(100), timeout=SECONDS).get()
        into = bytearray(3)
        last = owners[0].make.call_one("still", b"yes").get(timeout=SECONDS)
        last.read_into(into, timeout=SECONDS).get()
        assert into == b"yes"


def test_a_client_that_comes_again_registers_anew() -> None:
    data = bytearray(b"abc")
    first = RDMABuffer(data)
    reference = first[:]
    shutdown_context().get(timeout=SECONDS)
    second = RDMABuffer(data)
    into = bytearray(3)
    second.read_into(into).get()
    assert into == b"abc"
    with pytest.raises(RemoteMemoryError):
        reference.read_into(into, timeout=1).get()


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
            buffer.read_into(into, timeout=5).get()
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
        programs.append(Program(script))
        return programs[-1]

    yield run
    for program in programs:
        program.close()
