"""Controllers: actors that exist once in the whole program, found by name from any process.

They live in the client's process, under a registry that is an actor there too. So the registry
handles requests one after the other, and two callers at once get the same controller.
"""

from __future__ import annotations

from typing import Any

from monarch.actor.actor import Actor
from monarch.actor.actor_mesh import ActorMesh
from monarch.actor.endpoint import endpoint
from monarch.actor.future import Future
from monarch.actor.host_mesh import this_proc
from monarch.actor.mesh_ref import MeshRef
from monarch.errors import MeshFailure
from monarch.mesh import Shape
from monarch.offers import offered
from monarch.runtime import client_agent, process

_NAME = "controllers"


class _Registry(Actor):
    def __init__(self) -> None:
        self._controllers: dict[str, ActorMesh[Any]] = {}
        self._failures: dict[str, MeshFailure] = {}

    @endpoint
    def get_or_spawn(
        self, name: str, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> ActorMesh[Any]:
        failure = self._failures.get(name)
        if failure is not None:
            raise ValueError(f"Failure on {name}: {failure.report()}")
        if name not in self._controllers:
            self._controllers[name] = this_proc().spawn(name, cls, *args, **kwargs)
        return self._controllers[name]

    def __supervise__(self, failure: MeshFailure) -> bool:
        # The next caller that asks for it is told; other callers have nothing to do with it.
        if failure.mesh_name not in self._controllers:
            return False
        self._failures.setdefault(failure.mesh_name, failure)
        return True


def get_or_spawn_controller(
    name: str,
    Class: type,
    *args: Any,
    **kwargs: Any,
) -> Future[Any]:
    """Return the program's only actor called ``name``; the first call makes it.

    The actor lives in the client's process; any proc may ask for it. If the controller has failed,
    the future raises an ``ActorError`` that wraps a ``ValueError``.
    """
    root = process.current().root
    ref = MeshRef(f"{root.uid}.{_NAME}", _NAME, _Registry, Shape.unity(), procs=[root])
    registry: ActorMesh[Any] = ActorMesh(ref)
    return registry.get_or_spawn.call_one(name, Class, args, kwargs)  # type: ignore[no-any-return]


def debug_controller() -> Any:
    """Return the actor with the debug controller of Monarch's own API.

    Its endpoints are ``wait_pending_session`` and ``list``. `monarch debug` does not need it.
    """
    return offered("debug_controller")()


def _spawn_registry(agent: client_agent.ClientAgent) -> None:
    this_proc()._spawn(f"{agent.node.uid}.{_NAME}", _NAME, _Registry)


client_agent.on_demand(_NAME, _spawn_registry)
