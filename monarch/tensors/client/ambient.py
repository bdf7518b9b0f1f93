"""The mesh and the stream that are active in a thread.

One torch dispatch mode is on the thread's stack, however many activations are nested: two would
each see every operation. Autograd's threads get the stack, and with it the mesh.
"""

from __future__ import annotations

import itertools
import threading
from typing import Any

from monarch.tensors.core.keys import compare_by_identity


class TensorStream:
    """A sequence of operations, which each worker runs in order, beside other sequences.

    Each tensor belongs to the stream that it was made in; ``borrow`` lends it to another.
    """

    _numbers = itertools.count()

    def __init__(self, name: str) -> None:
        self.name = name
        self.number = next(TensorStream._numbers)

    def activate(self) -> Activation:
        """Send operations to this stream from now on.

        As a context manager, it does so until the end of the block.
        """
        return Activation(stream=self)

    def borrow(self, t: Any, mutable: bool = False) -> tuple[Any, Any]:
        """Lend ``t`` to this stream.

        Returns the borrowed tensor, and the ``Borrow`` that ends the loan. Until ``Borrow.drop()``
        the stream that owns ``t`` may only read it; if ``mutable``, it may not use ``t`` at all.
        Nothing is copied. Raises ``BorrowRefused``, a ``RuntimeError``, if an existing loan of
        ``t`` conflicts.
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
    """Makes a mesh or a stream active when it is created.

    As a context manager, it does so until the end of the block. A notebook may activate a mesh
    without ``with``.
    """

    def __init__(self, *, mode: Any = None, **values: Any) -> None:
        #: The values of ``ambient`` that are restored at the end.
        self._before = {name: getattr(ambient, name) for name in values}
        #: The dispatch mode, if this activation has entered it.
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
    """Return the stream that operations go to; the first one is named "main"."""
    return ambient.stream


def get_active_mesh() -> Any:
    """Return the active ``DeviceMesh``. Raises ``ValueError`` if no mesh is active."""
    if ambient.mesh is None:
        raise ValueError("no device mesh is active: use `with procs.activate():`")
    return ambient.mesh


class no_mesh:
    """``with monarch.no_mesh.activate():`` makes torch compute in this process, as without
    monarch."""

    @staticmethod
    def activate() -> Activation:
        return Activation(mesh=None)
