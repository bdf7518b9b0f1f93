"""Memory of one process, read and written by another while its owner does something else.

    python examples/rdma/buffers.py

Needs neither torch nor a network card. `buffer.backend` says how the bytes move.
"""

import time

from monarch.actor import Actor, endpoint, this_host
from monarch.rdma import RDMABuffer, RemoteMemoryError


class Owner(Actor):
    def __init__(self) -> None:
        self.data = bytearray(b"what the owner has" + bytes(8 * 1024))

    @endpoint
    def handle(self) -> RDMABuffer:
        self.buffer = RDMABuffer(memoryview(self.data))
        return self.buffer

    @endpoint
    def be_busy(self, seconds: float) -> bytes:
        time.sleep(seconds)
        return bytes(self.data[:5])


def main() -> None:
    owner = this_host().spawn_procs().spawn("owner", Owner)
    buffer = owner.handle.call_one().get()
    print("backend", buffer.backend)
    busy = owner.be_busy.call_one(1.0)
    into = bytearray(18)
    started = time.perf_counter()
    buffer[:18].read_into(into).get()
    buffer[:4].write_from(b"WHAT").get()
    print("read", into.decode(), "while it was busy:", time.perf_counter() - started < 1.0)
    counter = 1024 - buffer.part.region.address % 8
    buffer[counter : counter + 8].write_from(bytes(8)).get()
    print("counted", [buffer.fetch_add(1, counter).get() for _ in range(3)])
    print("the owner sees", busy.get().decode())
    buffer.drop().get()
    try:
        buffer[:18].read_into(into).get()
    except RemoteMemoryError as error:
        print("dropped:", error.reason)


if __name__ == "__main__":
    main()
