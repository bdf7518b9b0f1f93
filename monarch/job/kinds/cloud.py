"""The command that the machines of a cloud job run."""

from __future__ import annotations

import shlex

from monarch.python_start import module_arguments


def command_of_host(python_exe: str, address: str = "") -> str:
    """Return the shell command that runs a host agent.

    ``address`` is a shell expression for the machine's own address, if its name does not resolve to
    it.
    """
    where = f"MONARCH_POD_IP={address} " if address else ""
    task = module_arguments("monarch.runtime.entry.pod_task", "--machine")
    return f"{where}{shlex.quote(python_exe)} -u {shlex.join(task)}"
