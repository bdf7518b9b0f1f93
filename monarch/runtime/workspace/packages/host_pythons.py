"""Which Python and which packages the hosts of a push have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from monarch.runtime.node import Node
from monarch.runtime.workspace.packages.environment import EnvironmentFailed, HostPython
from monarch.runtime.workspace.packages.python_here import installed, python_tag
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.message import Inspect

__all__ = ["ask_pythons"]


def ask_pythons(
    node: Node, hosts: Sequence[ProcAddress], names: Mapping[Uid, str] = MappingProxyType({})
) -> list[HostPython]:
    """Ask all hosts at once; of this process's own, look. ``names``: how hosts are called that do
    not answer. Raises ``EnvironmentFailed``."""
    found: list[HostPython] = []
    asked = []
    for host in hosts:
        if host.uid == node.uid:
            found.append(HostPython("this host", python_tag(), installed(), is_here=True))
        else:
            inspect = node.request(host, lambda port: Inspect(port, node.uid, packages=True))
            asked.append((host, inspect))
    for host, answer in asked:
        answer.wait()
        body = answer.value.body
        where = names.get(host.uid) or (host.urls[0] if host.urls else host.uid)
        if answer.value.error:
            raise EnvironmentFailed(f"the host {where} did not answer: {answer.value.error}")
        if "packages" not in body:
            raise EnvironmentFailed(
                f"the host {where} cannot say which packages it has; restart its agent"
            )
        found.append(
            HostPython(
                str(body["host"]), str(body["python"]), dict(body["packages"]),
                [str(platform) for platform in body.get("platforms", ())],
            )
        )  # fmt: skip
    return found
