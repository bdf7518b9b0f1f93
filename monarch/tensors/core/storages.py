"""The permissions to read and write the memory behind tensors.

    state of a storage      reads   writes   how it gets there
    free                    yes     yes      at first; when the last borrow is given back
    lent                    yes     no       borrowed without `mutable`
    lent to be written      no      no       borrowed with `mutable`
    dropped                 no      no       `drop()`, the end of a recording, a borrow given back

A borrow is a storage of its own, of which `origin` is the lent one. It may be written to only where
it was borrowed so.
"""

from __future__ import annotations

from typing import Any

READ_AND_WRITE, READ, NOTHING = "rw", "r", ""


class BorrowRefused(RuntimeError):
    """The storage is lent already, in a way that this borrow does not go with."""


class Storage:
    """The memory that a tensor and its views look at, in all procs of the mesh."""

    # In the class, as most storages never differ from it: one is made for every operation.
    access = READ_AND_WRITE
    dropped: Any = None
    """Where, in words."""
    refs: set[int] | None = None
    """Of its tensors, where there are several."""
    meta: Any = None
    """What the first of its tensors looks like, where there are several."""
    fakes: dict[Any, Any] | None = None
    """Tensors without values that stand for its tensors, by what those look like."""
    is_known = False
    """Whether the number in it follows from constants."""
    origin: Storage | None = None
    num_borrows = 0
    borrowed_at = ""

    def share(self, first: int, ref: int, meta: Any = None) -> None:
        """Another tensor, ``ref``, looks at this; ``first`` is one that did already, and looks as
        ``meta`` says."""
        if self.refs is None:
            self.refs = {first}
            self.meta = meta
        self.refs.add(ref)

    def forget(self, ref: int) -> None:
        if self.refs is not None:
            self.refs.discard(ref)

    def all_refs(self, of: int) -> list[int]:
        """The references of all tensors that look at this, given the one in hand."""
        return [of] if self.refs is None else sorted(self.refs | {of})

    def drop(self, where: str) -> None:
        self.dropped = where
        self.access = NOTHING

    def lend(self, where: str, *, mutable: bool) -> Storage:
        """The storage of a borrow of this one.

        Raises ``BorrowRefused`` where this is lent to be written, or lent at all and ``mutable``.
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
        """This borrow ends: what it was borrowed from is its owner's again with the last one."""
        origin = self.origin
        assert origin is not None
        origin.num_borrows -= 1
        if origin.num_borrows == 0 and origin.dropped is None:
            origin.access = READ_AND_WRITE
            origin.borrowed_at = ""


def alias_pattern(storages: list[Storage]) -> tuple[int, ...]:
    """For each of these, the index of the first that shares its storage."""
    first: dict[int, int] = {}
    return tuple(first.setdefault(id(storage), n) for n, storage in enumerate(storages))
