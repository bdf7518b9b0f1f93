"""An Ethernet switch in user space: a port in each network namespace, with delay, rate and loss.

``python netlab_switch.py CONTROL NAMESPACE...``. It is told of a port's link by datagrams to the
socket CONTROL, as JSON: ``{"port": NAMESPACE, "delay": SECONDS, "rate": BYTES_PER_SECOND, "loss":
0.0 to 1.0}``, each for one direction, both being alike. It ends with its standard input.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import json
import os
import random
import select
import socket
import struct
import subprocess
import sys
import time
from typing import Literal

_CLONE_NEWNET = 0x40000000
_TUNSETIFF = 0x400454CA
_TAP_WITHOUT_HEADER = 0x1002
_MTU = 9000
_MAX_FRAME_BYTES = 65536
_MAX_BATCH = 64


class Link:
    """A link with two directions: frames in the queue of each leave at its rate, after its delay.

    A frame for a host is queued for a time to come, when it has passed its sender's link: what the
    host sends meanwhile must not wait for that.
    """

    def __init__(self) -> None:
        self.delay = self.rate = self.loss = 0.0
        self._free_at = {"up": 0.0, "down": 0.0}

    def when_through(self, direction: Literal["up", "down"], now: float, num_bytes: int) -> float:
        """When a frame that comes to this link now has passed it; 0 for one that is lost."""
        if self.loss and random.random() < self.loss:
            return 0.0
        if self.rate:
            begins = max(self._free_at[direction], now)
            now = self._free_at[direction] = begins + num_bytes / self.rate
        return now + self.delay


class Port(Link):
    """The link of a network namespace."""

    def __init__(self, namespace: str) -> None:
        super().__init__()
        libc = ctypes.CDLL(None, use_errno=True)
        here = os.open("/proc/self/ns/net", os.O_RDONLY)
        there = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
        try:
            if libc.setns(there, _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
            self.fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            fcntl.ioctl(self.fd, _TUNSETIFF, struct.pack("16sH22x", b"eth0", _TAP_WITHOUT_HEADER))
            subprocess.run(["ip", "link", "set", "eth0", "mtu", str(_MTU), "up"], check=True)
        finally:
            libc.setns(here, _CLONE_NEWNET)
            os.close(here)
            os.close(there)


def main() -> None:
    control = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    control.bind(sys.argv[1])
    ports = {name: Port(name) for name in sys.argv[2:]}
    by_fd = {port.fd: port for port in ports.values()}
    known: dict[bytes, Port] = {}
    under_way: list[tuple[float, int, Port, bytes]] = []
    number = 0
    print("ready", flush=True)
    while True:
        wait = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
        readable, _, _ = select.select([*by_fd, control, sys.stdin], [], [], wait)
        for source in readable:
            if source is sys.stdin:
                return
            if source is control:
                change = json.loads(control.recv(4096))
                vars(ports[change.pop("port")]).update(change)
                continue
            come = by_fd[source]
            for _ in range(_MAX_BATCH):
                try:
                    frame = os.read(source, _MAX_FRAME_BYTES)
                except OSError:
                    break
                known[frame[6:12]] = come
                left = come.when_through("up", time.monotonic(), len(frame))
                goes = known.get(frame[:6]) if not frame[0] & 1 else None
                for port in [goes] if goes is not None else ports.values():
                    if port is come or not left:
                        continue
                    # Queued at the receiver's link when it has passed the sender's.
                    arrives = port.when_through("down", left, len(frame))
                    if arrives:
                        number += 1
                        heapq.heappush(under_way, (arrives, number, port, frame))
        now = time.monotonic()
        while under_way and under_way[0][0] <= now:
            _, _, port, frame = heapq.heappop(under_way)
            try:
                os.write(port.fd, frame)
            except OSError:
                continue  # Its host has ended, or its queue is full: the frame is lost.


if __name__ == "__main__":
    main()
