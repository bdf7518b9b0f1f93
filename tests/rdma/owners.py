"""Actors that own memory. Apart from the tests, so that procs need not import pytest or torch."""

from __future__ import annotations

import mmap
import os
import pickle
import resource
import signal
import threading
import time
from pathlib import Path
from typing import Any

from monarch.actor import Actor, endpoint
from monarch.rdma import RDMABuffer
from monarch.testing.fake_gpu import FakeGpuArray, gpu_of_tests

# A guest machine that is emulated needs longer.
SECONDS = float(os.environ.get("RDMA_TEST_SECONDS", "20"))


def what_is_left() -> tuple[int, int, int, int]:
    """Registrations, descriptors, mappings, and bytes of memory, of this process."""
    from monarch.rdma.memory.registry import is_registry_made, registry

    num_registered = 0
    if is_registry_made():
        registry().sweep()
        num_registered = len(registry())
    mappings = Path("/proc/self/maps").read_text().splitlines()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
    return num_registered, len(os.listdir("/proc/self/fd")), len(mappings), resident


def _go_on_by(flag: str) -> None:
    while not os.path.exists(flag):
        time.sleep(0.01)
    gpu_of_tests().go_on()


class Owner(Actor):
    """Has byte arrays by name, of a fake GPU if it is told to, and buffers of them."""

    def __init__(self, on_gpu: bool = False, devices: tuple[str, ...] = ()) -> None:
        self.on_gpu = on_gpu
        if devices:  # Otherwise the first array makes it: in the tests' process they decide that.
            gpu_of_tests(devices)
        self.memory: dict[str, Any] = {}
        self.buffers: dict[str, RDMABuffer] = {}

    @endpoint
    def make(self, name: str, data: bytes) -> RDMABuffer:
        self.memory[name] = FakeGpuArray(data) if self.on_gpu else bytearray(data)
        view = self.memory[name] if self.on_gpu else memoryview(self.memory[name])
        self.buffers[name] = RDMABuffer(view)
        return self.buffers[name]

    @endpoint
    def make_on(self, name: str, data: bytes, device: int) -> RDMABuffer:
        self.memory[name] = FakeGpuArray(data, device=device)
        self.buffers[name] = RDMABuffer(self.memory[name])
        return self.buffers[name]

    @endpoint
    def register_again(self, name: str) -> RDMABuffer:
        return RDMABuffer(self.memory[name])

    @endpoint
    def begin(self, name: str, data: bytes, flag: str) -> None:
        """Has the GPU write it, which it comes to when there is a file ``flag``."""
        gpu_of_tests().stop_kernels()
        self.memory[name].fill_later(data)
        threading.Thread(target=_go_on_by, args=(flag,), daemon=True).start()

    @endpoint
    def set_up(self, **attributes: bool) -> None:
        """Make the fake GPU of this process one with these properties."""
        for name, value in attributes.items():
            setattr(gpu_of_tests(), name, value)

    @endpoint
    def num_in_limbo(self) -> int:
        return gpu_of_tests().num_in_limbo

    @endpoint
    def make_readonly(self, data: bytes) -> RDMABuffer:
        array = FakeGpuArray(data, is_readonly=True) if self.on_gpu else data
        self.memory["readonly"] = array
        return RDMABuffer(array if self.on_gpu else memoryview(data))

    @endpoint
    def make_strided(self, name: str, data: bytes, step: int) -> RDMABuffer:
        self.memory[name] = FakeGpuArray(data)
        self.buffers[name] = RDMABuffer(self.memory[name].strided(step))
        return self.buffers[name]

    @endpoint
    def make_tensor(self, name: str, values: Any, view: str = "") -> RDMABuffer:
        import torch

        tensor = torch.tensor(values)
        self.memory[name] = tensor
        self.buffers[name] = RDMABuffer(eval(f"tensor{view}", {"tensor": tensor}))
        return self.buffers[name]

    @endpoint
    def content(self, name: str) -> bytes:
        return bytes(self.memory[name])

    @endpoint
    def values(self, name: str) -> Any:
        return self.memory[name].tolist()

    @endpoint
    def put(self, name: str, data: bytes) -> None:
        self.memory[name][: len(data)] = data

    @endpoint
    def drop(self, name: str) -> None:
        self.buffers.pop(name).drop().get()

    @endpoint
    def free(self, name: str) -> None:
        self.memory.pop(name, None)
        self.buffers.pop(name, None)

    @endpoint
    def add(self, name: str, amount: int, times: int) -> None:
        for _ in range(times):
            self.buffers[name].fetch_add(amount).get()

    @endpoint
    def change(self, name: str, times: int) -> None:
        """Fill it with one byte after the other, each time as a whole."""
        memory = self.memory[name]
        for number in range(times):
            with self.buffers[name].changing():
                half = len(memory) // 2
                memory[:half] = bytes([number % 251]) * half
                memory[half:] = bytes([number % 251]) * (len(memory) - half)

    @endpoint
    def num_registered(self) -> int:
        from monarch.rdma.memory.registry import registry

        registry().sweep()
        return len(registry())

    @endpoint
    def left(self) -> tuple[int, int, int, int]:
        return what_is_left()

    @endpoint
    def num_descriptors(self) -> int:
        return len(os.listdir("/proc/self/fd"))

    @endpoint
    def make_many(self, num: int) -> list[RDMABuffer]:
        for number in range(num):
            self.memory[str(number)] = bytearray(number.to_bytes(8, "little"))
            self.buffers[str(number)] = RDMABuffer(memoryview(self.memory[str(number)]))
        return list(self.buffers.values())

    @endpoint
    def free_all(self) -> None:
        self.memory.clear()
        self.buffers.clear()

    @endpoint
    def fork_and_make(self, data: bytes) -> tuple[RDMABuffer, int]:
        """A buffer of a child, as programs have that fork, and its pid; it lives until
        ``end_child``."""
        answer, told = os.pipe()
        wait, self.end = os.pipe()
        self.child = os.fork()
        if self.child == 0:
            memory = bytearray(data)
            try:
                os.write(told, pickle.dumps(RDMABuffer(memory)))
            finally:
                os.close(self.end)
                os.read(wait, 1)
                os._exit(0)
        os.close(told)
        os.close(wait)
        return pickle.loads(os.read(answer, 2**16)), self.child

    @endpoint
    def end_child(self) -> None:
        os.close(self.end)
        os.waitpid(self.child, 0)

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Reader(Actor):
    """Reads and writes what others own, with a fake GPU of its own if it is told to."""

    def __init__(self, on_gpu: bool = False, devices: tuple[str, ...] = ("GPU-0",)) -> None:
        if on_gpu:
            gpu_of_tests(devices)

    @endpoint
    def read_to_gpu(self, buffer: RDMABuffer) -> tuple[bytes, dict[str, int], int, str]:
        """What was read into a GPU, the copies made, the handles opened, and the way."""
        array, fake = FakeGpuArray(bytes(buffer.size())), gpu_of_tests()
        fake.copies.clear()
        buffer.read_into(array, timeout=SECONDS).get()
        return bytes(array), fake.copies, fake.num_opens, buffer.backend

    @endpoint
    def read(self, buffer: RDMABuffer) -> bytes:
        into = bytearray(buffer.size())
        buffer.read_into(into, timeout=SECONDS).get()
        return bytes(into)

    @endpoint
    def write(self, buffer: RDMABuffer, data: bytes) -> None:
        buffer.write_from(data, timeout=SECONDS).get()

    @endpoint
    def add(self, buffer: RDMABuffer, amount: int, times: int) -> None:
        for _ in range(times):
            buffer.fetch_add(amount).get()

    @endpoint
    def drop(self, buffer: RDMABuffer) -> None:
        buffer.drop().get()

    @endpoint
    def use_without_descriptors(self, buffer: RDMABuffer) -> list[str]:
        """Returns the errors of reading, writing, adding and making while no descriptor can be
        opened."""
        memory = bytearray(8)
        mine, kept = RDMABuffer(memory), memory
        uses = (
            lambda: buffer.read_into(bytearray(buffer.size()), timeout=SECONDS).get(),
            lambda: buffer.write_from(b"12345678", timeout=SECONDS).get(),
            lambda: buffer.fetch_add(1, timeout=SECONDS).get(),
            lambda: mine.drop().get(),
        )
        said = []
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
        try:
            for use in uses:
                try:
                    use()
                    said.append("done")
                except Exception as error:
                    said.append(f"{type(error).__name__}: {error}")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        assert kept == bytes(8)
        return said

    @endpoint
    def count_by_swaps(self, buffer: RDMABuffer, times: int) -> None:
        """Add one, so many times, as programs do that have compare and swap alone."""
        seen = 0
        for _ in range(times):
            while (found := buffer.compare_and_swap(seen, seen + 1).get()) != seen:
                seen = found

    @endpoint
    def write_and_die(self, buffer: RDMABuffer, num_bytes: int) -> None:
        """Die half way through a write."""
        from monarch.rdma.memory import table as tables

        region = buffer.part.region
        fd = region.table.open()
        with tables.in_use(fd, region.slot, 2.0**40):
            tables.begin(fd, region.slot, 2.0**40)
            os.kill(os.getpid(), signal.SIGKILL)
