"""The command that the machines of a cloud's job run."""

from __future__ import annotations

import shlex

from monarch.python_start import module_arguments


def command_of_host(python_exe: str, address: str = "") -> str:
    """The shell command that is a host agent. ``address`` is what the shell makes the machine's own
    address of, where its name does not stand for that."""
    where = f"MONARCH_POD_IP={address} " if address else ""
    task = module_arguments("monarch.runtime.entry.pod_task", "--machine")
    return f"{where}{shlex.quote(python_exe)} -u {shlex.join(task)}"
