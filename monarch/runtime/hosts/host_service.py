"""All parts that answer at a host's address: the agent, its door, and the handlers of requests."""

from __future__ import annotations

from collections.abc import Callable

from monarch.runtime.hosts.host_agent import HostAgent
from monarch.runtime.hosts.host_door import HostDoor
from monarch.runtime.hosts.hosted_workspace import HostedWorkspace
from monarch.runtime.hosts.idle_watch import IdleWatch
from monarch.runtime.hosts.launcher import Launcher, StartLauncher
from monarch.runtime.hosts.relay import Relay
from monarch.runtime.node import Node
from monarch.runtime.programs.host_programs import HostPrograms
from monarch.wire.host_url import HostUrl
from monarch.wire.message import Inspect, Shutdown


class HostService:
    """A host agent that clients may connect to. ``over`` is called when a client has shut it
    down."""

    def __init__(
        self,
        node: Node,
        directory: str,
        name: str,
        over: Callable[[], object],
        *,
        workspace: HostedWorkspace | None = None,
        start_launcher: StartLauncher = Launcher,
    ) -> None:
        self.node = node
        node.start()
        node.replace_address(host_uid=node.uid)
        self.agent = HostAgent(
            node, directory, name, workspace=workspace, start_launcher=start_launcher
        )
        self._door = HostDoor(self.agent, Relay(self.agent).forget)
        self.programs = HostPrograms(self.agent)
        self._idle = IdleWatch(node, self._is_in_use, self._end_idle)
        self._over = over
        node.on(Shutdown, self._on_shutdown)
        node.on(Inspect, self._on_inspect)

    def open(self, url: HostUrl) -> None:
        """Listen at ``url``, so that clients can attach.

        Call it when everything else is set up, because a client that was waiting sends requests at
        once.
        """

        def listen() -> None:
            self.node.listen(url.bind, advertise=url.advertise)
            self.node.replace_address(host_urls=self.node.address.urls)

        self.node.loop.run_on_loop(listen)

    def _is_in_use(self) -> bool:
        """Return whether a client, a program or a watch uses this host now."""
        bulletins = self.agent.bulletins
        return bool(
            self._door.client
            or self.programs.num_in_use
            or bulletins.num_listeners
            or bulletins.standing()
            or self.agent.workspace.is_moving
        )

    def _end_idle(self) -> None:
        self.agent.others.say_goodbye()
        self._over()

    def _on_shutdown(self, order: Shutdown) -> None:
        self.agent.others.say_goodbye()
        self.agent.close()
        self.node.answer(order)
        self._over()

    def _on_inspect(self, order: Inspect) -> None:
        holder = self._door.client
        state = self.agent.describe(packages=order.packages)
        state.programs = tuple(self.programs.describe())
        state.idle_limit = self._idle.limit
        state.idle_seconds = 0.0 if state.idle_limit is None else self._idle.idle_seconds()
        if holder is not None:
            state.client, state.client_address = holder.name, holder.client
        self.node.answer(order, state)

    def close(self) -> None:
        self.programs.close()
        self.node.loop.run_on_loop(self.agent.close, timeout=5.0)
        self.node.close()
