"""A host agent in a process of its own."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading

from monarch.config import settings
from monarch.runtime.directory import new_directory
from monarch.runtime.host_agent import HostAgent
from monarch.runtime.host_door import HostDoor
from monarch.runtime.node import Node
from monarch.runtime.secret import take_secret
from monarch.runtime.workspace.replica_agent import ReplicaAgent
from monarch.wire.codec import Envelope
from monarch.wire.host_url import HostUrl
from monarch.wire.keys import JobKeys
from monarch.wire.message import Inspect, Shutdown

__all__ = ["main", "serve_host"]


def serve_host(address: str, name: str = "") -> None:
    """Be the host agent at ``address`` until a client shuts it down, or SIGTERM comes."""
    url = HostUrl.parse(address)
    secret = take_secret()
    node = Node(url.uid, JobKeys(secret) if secret else None)
    sys.setswitchinterval(settings().switch_interval_seconds)
    node.start()
    node.replace_address(host_uid=node.uid)
    directory = new_directory(node.uid)
    agent = HostAgent(node, directory, name)
    if url.bind.startswith("tcp://"):
        agent.bind_host = url.bind.removeprefix("tcp://").rpartition(":")[0]
    door = HostDoor(agent)
    replica = ReplicaAgent(agent, os.environ.get("WORKSPACE_DIR") or f"{directory}/workspace")
    over = threading.Event()

    def on_shutdown(envelope: Envelope) -> None:
        order = envelope.message
        assert isinstance(order, Shutdown)
        agent.close()
        node.answer(order.sender, order.port)
        over.set()

    def on_inspect(envelope: Envelope) -> None:
        order = envelope.message
        assert isinstance(order, Inspect)
        holder = door.client
        body = {"client": holder.name, "client_address": holder.client} if holder else {}
        node.answer(order.sender, order.port, {"client": ""} | body | agent.describe())

    node.handle(Shutdown, on_shutdown)
    node.handle(Inspect, on_inspect)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: over.set())
    try:
        # Last, because whoever was waiting for us asks at once.
        node.listen(url.bind, advertise=url.advertise)
        node.replace_address(host_urls=node.address.urls)
        over.wait()
    finally:
        node.loop.run_on_loop(agent.close, timeout=5.0)
        replica.close()
        node.close()
        shutil.rmtree(directory, ignore_errors=True)


def main() -> None:
    """``python -m monarch.runtime.host_main ADDRESS [NAME]``"""
    serve_host(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "")


if __name__ == "__main__":
    main()
