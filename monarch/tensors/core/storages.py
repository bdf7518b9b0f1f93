"""The permissions to read and write the memory behind tensors.

    state of a storage      reads   writes   how it gets there
    free                    yes     yes      at first; when the last borrow is given back
    lent                    yes     no       borrowed without `mutable`
    lent to be written      no      no       borrowed with `mutable`
    dropped                 no      no       `drop()`, the end of a recording, a borrow given back

A borrow is a storage of its own; its `origin` is the storage that is lent. It may be written to
only if it was borrowed with `mutable`.
"""

from __future__ import annotations

from typing import Any

READ_AND_WRITE, READ, NOTHING = "rw", "r", ""


class BorrowRefused(RuntimeError):
    """The storage is lent already, and the existing loan conflicts with the new borrow."""


class Storage:
    """The memory behind a tensor and its views, in all procs of the mesh."""

    # Defaults in the class: each operation makes a storage, and most never get other values.
    access = READ_AND_WRITE
    #: Where the program dropped it, in words; ``None`` if it did not.
    dropped: Any = None
    #: The references of its tensors; ``None`` if there is only one tensor.
    refs: set[int] | None = None
    #: The looks of its first tensor; ``None`` if there is only one tensor.
    meta: Any = None
    #: Tensors without values, by their looks: each stands for all its tensors with these looks.
    fakes: dict[Any, Any] | None = None
    #: Whether the number in it follows from constants.
    is_known = False
    #: The storage that is lent, if this is a borrow.
    origin: Storage | None = None
    #: How many borrows of it have not been given back.
    num_borrows = 0
    #: Where the program borrowed it last, in words.
    borrowed_at = ""

    def share(self, first: int, ref: int, meta: Any = None) -> None:
        """Add the tensor ``ref``, which views this memory.

        ``first`` is a tensor that has this memory already, and ``meta`` describes its shape.
        """
        if self.refs is None:
            self.refs = {first}
            self.meta = meta
        self.refs.add(ref)

    def all_refs(self, of: int) -> list[int]:
        """Return the references of all tensors that view this memory.

        ``of`` is a tensor that views it; it is the only one if none has been added by ``share``.
        """
        return [of] if self.refs is None else sorted(self.refs | {of})

    def drop(self, where: str) -> None:
        self.dropped = where
        self.access = NOTHING

    def lend(self, where: str, *, mutable: bool) -> Storage:
        """Return the storage of a new borrow of this storage.

        Raises ``BorrowRefused`` if it is already lent with ``mutable``, or if it is lent at all and
        the new borrow is ``mutable``.
        """
        if self.access == NOTHING or (mutable and self.access != READ_AND_WRITE):
            how = "mutably " if mutable else ""
            lent = "mutably" if self.access == NOTHING else "non-mutably"
            raise BorrowRefused(
                f"Cannot borrow this tensor {how}because it (or a view) is already being borrowed "
                f"{lent}. Drop that borrow first; it was made at:\n{self.borrowed_at}"
            )
        borrow = Storage()
        borrow.origin = self
        borrow.access = READ_AND_WRITE if mutable else READ
        borrow.borrowed_at = where
        self.access = NOTHING if mutable else READ
        self.num_borrows += 1
        self.borrowed_at = where
        return borrow

    def give_back(self) -> None:
        """End this borrow of a storage.

        When the last borrow has ended, the storage that was lent may be read and written again.
        """
        origin = self.origin
        assert origin is not None
        origin.num_borrows -= 1
        if origin.num_borrows == 0 and origin.dropped is None:
            origin.access = READ_AND_WRITE
            origin.borrowed_at = ""


def alias_pattern(storages: list[Storage]) -> tuple[int, ...]:
    """Return, for each storage, the index at which the same storage first appears in the list."""
    first: dict[int, int] = {}
    return tuple(first.setdefault(id(storage), n) for n, storage in enumerate(storages))
