"""The command of a pod, or of a machine of a cloud's job: a host agent on it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys

from monarch.net.gate import is_loopback
from monarch.runtime.entry.scheduled_task import keep_host
from monarch.runtime.hosts.end_notice import EndNotice, grace_seconds

_DEFAULT_PORT = 26600
_MACHINE = "--machine"


def main() -> None:
    """Keep a host agent at ``MONARCH_PORT`` (26600) of this pod, until it ends.

    Run as ``python -m monarch.runtime.entry.pod_task``. Set ``MONARCH_POD_IP`` if the machine's
    name does not resolve to its address. With ``--machine`` an agent that dies is started again; in
    a pod, Kubernetes does that.
    """
    is_machine = _MACHINE in sys.argv[1:]
    port = int(os.environ.get("MONARCH_PORT") or _DEFAULT_PORT)
    name = os.environ.get("MONARCH_POD_NAME") or socket.gethostname()
    ip = os.environ.get("MONARCH_POD_IP") or _own_address()
    # Kubernetes starts a container again whose first process ends: it counts, and waits longer
    # each time.
    url = f"tcp://{ip}:{port}"
    bind = url if is_loopback(url) else f"tcp://0.0.0.0:{port}"
    sys.exit(abs(keep_host(f"{url}@{bind}", name, _meaning, again=is_machine)))


def _own_address() -> str:
    """Return the address of the machine's name; else the address that packets from here are sent
    from."""
    with contextlib.suppress(OSError):
        address = socket.gethostbyname(socket.gethostname())
        if not address.startswith("127."):
            return address
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # for documents only: nothing is sent
        return str(probe.getsockname()[0])


def _meaning(number: int) -> EndNotice | None:
    """Return the end that a signal announces; None for any signal but SIGTERM.

    SIGTERM means that the pod or machine is taken away when its grace period is over.
    """
    if number != signal.SIGTERM:
        return None
    why = "its machine is taken away" if _MACHINE in sys.argv[1:] else "its pod is being deleted"
    return EndNotice(why, grace_seconds(), is_last=True)


if __name__ == "__main__":
    main()
