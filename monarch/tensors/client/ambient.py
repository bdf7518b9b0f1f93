"""Which mesh and which stream are active in a thread.

One torch dispatch mode stands on the thread's stack, however many activations are nested: two would
each see every operation. It goes to autograd's threads with the stack, and so does its mesh.
"""

from __future__ import annotations

import itertools
import threading
from typing import Any

from monarch.tensors.core.keys import compare_by_identity


class TensorStream:
    """A sequence of operations at the workers, beside those of other streams.

    Each tensor belongs to the stream that it was made in; ``borrow`` lends it to another.
    """

    _numbers = itertools.count()

    def __init__(self, name: str) -> None:
        self.name = name
        self.number = next(TensorStream._numbers)

    def activate(self) -> Activation:
        """Operations go to this stream, from this call on; used with ``with``, to its end."""
        return Activation(stream=self)

    def borrow(self, t: Any, mutable: bool = False) -> tuple[Any, Any]:
        """``t`` for use in this stream, and the ``Borrow``, to be dropped in the end.

        Meanwhile the stream that it belongs to may read it, or with ``mutable`` not even that.
        Nothing is copied. Raises ``BorrowRefused``, a ``RuntimeError``, where it is lent in
        another way.
        """
        mesh = getattr(t, "mesh", None)
        if mesh is None:
            raise TypeError(
                f"borrow takes a tensor of a mesh, not a {type(t).__name__} of this process, which "
                "belongs to no stream: make it while a mesh is active"
            )
        return mesh.lend_to_stream(t, self, mutable)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"<Stream({self.name!r})>"


MAIN = TensorStream("main")
compare_by_identity(TensorStream)


class _Ambient(threading.local):
    mesh: Any = None
    stream: TensorStream = MAIN
    mode: Any = None


ambient = _Ambient()


class Activation:
    """Active from the call on, so that a notebook may call it bare; as a context, until its end."""

    def __init__(self, *, mode: Any = None, **values: Any) -> None:
        self._before = {name: getattr(ambient, name) for name in values}
        self._mode = None
        for name, value in values.items():
            setattr(ambient, name, value)
        if mode is not None and ambient.mode is None:
            self._mode = ambient.mode = mode
            mode.__enter__()
        if ambient.mode is not None:
            ambient.mode.mesh = ambient.mesh

    def __enter__(self) -> Activation:
        return self

    def __exit__(self, *error: object) -> None:
        for name, value in self._before.items():
            setattr(ambient, name, value)
        if ambient.mode is not None:
            ambient.mode.mesh = ambient.mesh
        if self._mode is not None:
            ambient.mode = None
            self._mode.__exit__(None, None, None)
            self._mode = None


def get_active_stream() -> TensorStream:
    """The stream that operations go to; named "main" at first."""
    return ambient.stream


def get_active_mesh() -> Any:
    """The ``DeviceMesh`` that is active. Raises ``ValueError`` where none is."""
    if ambient.mesh is None:
        raise ValueError("no device mesh is active: use `with procs.activate():`")
    return ambient.mesh


class no_mesh:
    """``with monarch.no_mesh.activate():`` torch computes in this process, as it does by itself."""

    @staticmethod
    def activate() -> Activation:
        return Activation(mesh=None)
