"""Times one-sided memory beside what bounds it and its peers; prints one JSON object a line.

    python benchmarks/rdma.py [same_host] [small] [tcp]
    python benchmarks/rdma.py namespaces    # TCP between two network namespaces; as root
    python benchmarks/rdma.py same_host --peer /path/to/python    # whose `monarch` is the original

Each figure is taken in turns with what it is compared to, so that both meet the same load. Figures
are medians over rounds, `best` is the ratio of the best of each; `load1` is the load average at the
time: on a busy machine they are lower bounds of a bandwidth.
"""

import ctypes
import json
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

from monarch.actor import Actor, endpoint, this_host
from monarch.rdma import RDMABuffer

MIB = 2**20
ROUNDS = 8


def emit(metric: str, value: float, unit: str, **more: object) -> None:
    line = {"metric": metric, "value": round(value, 4), "unit": unit, **more}
    print(json.dumps({**line, "load1": os.getloadavg()[0]}), flush=True)


def seconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


class Owner(Actor):
    """Owns memory in a proc of its own, and can also send it over a plain socket."""

    def __init__(self, size: int) -> None:
        self.data = bytearray(os.urandom(1 << 16)) * (size >> 16)
        self.buffer = RDMABuffer(memoryview(self.data))

    @endpoint
    def handle(self) -> RDMABuffer:
        return self.buffer

    @endpoint
    def place(self) -> tuple[int, int]:
        return os.getpid(), ctypes.addressof(ctypes.c_char.from_buffer(self.data))

    @endpoint
    def echo(self) -> None:
        return None

    @endpoint
    def serve_plain(self, host: str) -> int:
        """Serve all of the memory to one connection, each time it sends a byte; return the port."""
        listener = socket.create_server((host, 0))

        def serve() -> None:
            sock, _ = listener.accept()
            while sock.recv(1):
                sock.sendall(self.data)

        threading.Thread(target=serve, daemon=True).start()
        return int(listener.getsockname()[1])


class IoVec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def system_call(name: str, pid: int, here: bytearray, there: int) -> Callable[[], None]:
    call = getattr(ctypes.CDLL(None), name)
    call.restype = ctypes.c_ssize_t
    size = len(here)
    ours = IoVec(ctypes.addressof(ctypes.c_char.from_buffer(here)), size)
    theirs = IoVec(there, size)

    def run() -> None:
        assert call(pid, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0) == size

    return run


def compare(
    metric: str, size: int, ours: Callable[[], object], limit: Callable[[], object], what: str
) -> None:
    ours(), limit()
    mine, other = [], []
    rounds = ROUNDS if size > 64 * MIB else 20 * ROUNDS
    for number in range(rounds):
        # Who comes second finds the bytes in the cache: each is second half of the time.
        if number % 2:
            other.append(size / seconds(limit) / 1e9)
        mine.append(size / seconds(ours) / 1e9)
        if not number % 2:
            other.append(size / seconds(limit) / 1e9)
    ratio = statistics.median(a / b for a, b in zip(mine, other, strict=True))
    emit(metric, statistics.median(mine), "GB/s", n=rounds)
    emit(f"{metric}.{what}", statistics.median(other), "GB/s", n=rounds)
    emit(f"{metric}.ratio", ratio, f"of {what}", best=round(max(mine) / max(other), 4))


def same_host() -> None:
    """Measure reads and writes of another process's memory, beside the bare system call."""
    procs = this_host().spawn_procs({"gpus": 1})
    for size in (4 * MIB, 256 * MIB):
        owner = procs.spawn("owner", Owner, size)
        buffer = owner.handle.call_one().get()
        pid, there = owner.place.call_one().get()
        here = bytearray(size)
        for kind, call in (("read", "process_vm_readv"), ("write", "process_vm_writev")):
            move = buffer.read_into if kind == "read" else buffer.write_from
            compare(
                f"same_host.{kind}_{size // MIB}_MiB", size,
                lambda move=move, here=here: move(here).get(),
                system_call(call, pid, here, there), "the system call",
            )  # fmt: skip
        owner.stop().get()
    procs.stop().get()


def small() -> None:
    """Measure a read of 4 KiB, beside the round trip of a call."""
    procs = this_host().spawn_procs({"gpus": 1})
    owner = procs.spawn("owner", Owner, 1 << 16)
    part = owner.handle.call_one().get()[:4096]
    into = bytearray(4096)
    reads, calls = [], []
    for _ in range(20):
        reads += [seconds(lambda: part.read_into(into).get()) for _ in range(100)]
        calls += [seconds(lambda: owner.echo.call_one().get()) for _ in range(100)]
    read, call = statistics.median(reads), statistics.median(calls)
    emit("small.read_4_KiB.p50", read * 1e6, "us", n=len(reads))
    emit("small.call_one.p50", call * 1e6, "us", n=len(calls))
    emit("small.ratio", read / call, "of call_one")
    procs.stop().get()


def tcp() -> None:
    """Measure reads over TCP on the loopback, beside a plain socket's ``recv_into``."""
    from monarch.config import configured

    with configured(rdma_same_host=False):
        procs = this_host().spawn_procs({"gpus": 1})
        against_a_socket("tcp", procs, "127.0.0.1")
        procs.stop().get()


def against_a_socket(metric: str, procs: Any, host: str) -> None:
    size = 256 * MIB
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        owner = procs.spawn("owner", Owner, size)
        buffer = owner.handle.call_one().get()
        assert buffer.backend == "tcp", buffer.backend
        into = bytearray(size)
        plain = socket.create_connection((host, owner.serve_plain.call_one(host).get()))

        def receive() -> None:
            plain.sendall(b"x")
            view = memoryview(into)
            while view.nbytes:
                view = view[plain.recv_into(view) :]

        compare(
            f"{metric}.read_256_MiB", size, lambda: buffer.read_into(into).get(), receive,
            "a plain socket",
        )  # fmt: skip
        plain.close()


THERE = "198.18.78.2"
HOST = "from monarch.cli.entry import main; main()"


def namespaces() -> None:
    """Measure reads over TCP between two network namespaces, each of which counts as a host."""
    names, port = ("mbench-a", "mbench-b"), 26613
    env = {**os.environ, "MONARCH_JOB_SECRET": os.urandom(32).hex()}
    try:
        for name in names:
            subprocess.run(["ip", "netns", "add", name], check=True)
        ends = [f"mbench-v{name[-1]}" for name in names]
        link = ["ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1]]
        subprocess.run(link, check=True)
        for name, end, address in zip(names, ends, ("198.18.78.1", THERE), strict=True):
            subprocess.run(["ip", "link", "set", end, "netns", name], check=True)
            for words in (
                f"addr add {address}/24 dev {end}",
                f"link set {end} up",
                "link set lo up",
            ):
                subprocess.run(["ip", "-n", name, *words.split()], check=True)
        url = f"tcp://{THERE}:{port}"
        there, here = (["ip", "netns", "exec", name, sys.executable] for name in reversed(names))
        host = subprocess.Popen([*there, "-c", HOST, "host", "--address", url], env=env)
        try:
            subprocess.run([*here, __file__, "--across", url], env=env, check=True)
        finally:
            host.terminate()
            host.wait()
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False)


def across(url: str) -> None:
    from monarch.actor import attach_to_workers

    hosts = attach_to_workers(ca="trust_all_connections", workers=[url])
    procs = hosts.spawn_procs({"gpus": 1})
    against_a_socket("namespaces", procs, THERE)
    procs.stop().get()


PEER = """
import json, os, statistics, sys, time
import torch
from monarch.actor import Actor, endpoint, this_host
from monarch.rdma import RDMABuffer
SIZES = (4 * 2**20, 256 * 2**20)
class Owner(Actor):
    def __init__(self, size):
        self.data = torch.randint(0, 255, (size,), dtype=torch.uint8)
    @endpoint
    async def handle(self):
        return RDMABuffer(self.data)
class Reader(Actor):
    @endpoint
    async def use(self, buffer, size):
        here = torch.zeros(size, dtype=torch.uint8)
        found = {}
        for kind, move in (("read", buffer.read_into), ("write", buffer.write_from)):
            times = []
            for _ in range(6):
                started = time.perf_counter()
                await move(here, timeout=60)
                times.append(time.perf_counter() - started)
            found[kind] = size / statistics.median(times[1:]) / 1e9
        return found
if __name__ == "__main__":
    procs = this_host().spawn_procs({"gpus": 2})
    for size in SIZES:
        owner = procs.slice(gpus=0).spawn("owner", Owner, size)
        reader = procs.slice(gpus=1).spawn("reader", Reader)
        buffer = owner.handle.call_one().get()
        for kind, value in reader.use.call_one(buffer, size).get().items():
            print(json.dumps([f"{kind}_{size >> 20}_MiB", value]), flush=True)
"""


def against(peer: str) -> None:
    """Run one program with the original Monarch and with this project, in turns; print both."""
    found: dict[str, dict[str, list[float]]] = {"ours": {}, "the original": {}}
    for _ in range(2):
        for who, python in (("ours", sys.executable), ("the original", peer)):
            done = subprocess.run(
                [python, "-c", PEER], capture_output=True, text=True, timeout=120, check=False
            )
            for line in done.stdout.splitlines():
                if line.startswith("["):
                    metric, value = json.loads(line)
                    found[who].setdefault(metric, []).append(value)
    for metric, values in found["ours"].items():
        others = found["the original"].get(metric)
        emit(f"same_host.{metric}.ours", statistics.median(values), "GB/s")
        if others:
            emit(f"same_host.{metric}.the original", statistics.median(others), "GB/s")
            ratio = statistics.median(values) / statistics.median(others)
            emit(f"same_host.{metric}.ratio to the original", ratio, "times")


PARTS = {one.__name__: one for one in (same_host, small, tcp)}

if __name__ == "__main__":
    arguments = sys.argv[1:]
    if arguments[:1] == ["--across"]:
        across(arguments[1])
        sys.exit()
    peer_python = ""
    if "--peer" in arguments:
        place = arguments.index("--peer")
        peer_python = arguments[place + 1]
        del arguments[place : place + 2]
    for name in arguments or PARTS:
        (namespaces if name == "namespaces" else PARTS[name])()
    if peer_python:
        against(peer_python)
