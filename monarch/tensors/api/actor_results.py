"""Results of endpoints as distributed tensors: ``endpoint.rref(...)``."""

from __future__ import annotations

from typing import Any

from monarch.tensors.client.ambient import ambient, get_active_mesh
from monarch.tensors.client.dispatch import check_arguments
from monarch.tensors.client.handing import has_failed, ranks_of
from monarch.tensors.client.issuing import issue
from monarch.tensors.client.propagation import of_function
from monarch.tensors.worker.arrivals import divert


class _Diverted:
    """Arguments of an actor call whose result stays in the proc of the actor.

    There the result is put into the slot of number ``ticket``, from which the tensor worker takes
    it.
    """

    def __init__(self, args: tuple[Any, ...], ticket: int) -> None:
        self._args = args
        self._ticket = ticket

    def __reduce__(self) -> Any:
        return divert, (self._args, self._ticket)


def rref(endpoint: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call an endpoint and return its result as distributed tensors; see ``Endpoint.rref``.

    Raises ``ValueError`` unless each proc of the tensors' mesh has one of the actors.
    """
    rule = endpoint._spec.propagate
    name = f"{endpoint._mesh.name}.{endpoint._name}"
    if rule == "inspect":
        rule = _no_result
    if not callable(rule):
        raise NotImplementedError(
            f"{name}.rref needs a rule for what comes out: @endpoint(propagate=function), or "
            'propagate="inspect" for nothing. "cached" is for remote functions: an actor has state'
        )
    key: list[Any] = []
    tensors = check_arguments(name, args, kwargs, key)
    mesh = tensors[0].mesh if tensors else get_active_mesh()
    if mesh.client.recording is not None:
        raise NotImplementedError(
            f"{name}.rref in a compiled function: the actor is not called when it is replayed. "
            "Call it outside, and give the function its result"
        )
    ranks = ranks_of(mesh, endpoint._mesh.proc_uids)
    if set(ranks) != set(mesh.processes):
        raise ValueError(
            f"{name}.rref is of actors on ranks {sorted(ranks)}, and {mesh} has more: its tensors "
            "have a value in each proc. Slice the mesh to the actors' procs"
        )
    client = mesh.client
    template, spec = of_function(name, rule, args, kwargs, None)
    paths = [path for path in spec.paths if path is not None]
    builtin_key = ("rref", repr(paths), template.results, template.mutates, len(tensors))
    if builtin_key not in client.builtins:
        client.builtins[builtin_key] = client.define_template(
            template, 1, "results", paths, len(tensors)
        )
    ticket = client.next_ticket()
    desk = client.desk
    promise = endpoint._send_call(args, kwargs, lambda args: _Diverted(args, ticket))

    def give_up() -> None:
        if has_failed(promise.value):
            error = RuntimeError(
                f"{name} has not returned: its actor or its process has ended. Spawn the actors "
                "again, and call it anew"
            )
            desk.give_up.broadcast([ticket], (None, error))

    promise.on_set(give_up)
    template.number = client.builtins[builtin_key].number
    return issue(template, tensors, [ticket], mesh, ambient.stream)


def _no_result(*args: Any, **kwargs: Any) -> None:
    return None
