"""Names of actors and processes, as programs see them."""

from __future__ import annotations

import re
import secrets

import msgspec
from msgspec.structs import force_setattr

_DIGITS = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_NUM_DIGITS = 11  # enough for 64 bits
# Compiled when they are first used.
_UID = rf"([^<>@\s]*)(?:<([{_DIGITS}]+)>)?"
_ADDR = r"(.*?)(?:<([^<>]+)>)?\.([^.@]+)@(.*)"


class Uid(msgspec.Struct, frozen=True):
    """A unique name: of an instance (``label<number>``), or of a singleton (``label``)."""

    label: str | None
    instance_value: int | None = None

    def __post_init__(self) -> None:
        if self.instance_value is None and not self.label:
            raise ValueError("a uid needs a label or a number")
        if self.instance_value is not None and not 0 <= self.instance_value < 1 << 64:
            raise ValueError(f"{self.instance_value} does not fit into 64 bits")

    @staticmethod
    def anonymous() -> Uid:
        """Return a new uid without a label."""
        return Uid.instance()

    @staticmethod
    def instance(label: str | None = None) -> Uid:
        """Return a new uid with a random number."""
        return Uid(label, secrets.randbits(64))

    @staticmethod
    def instance_from_value(value: int, label: str | None = None) -> Uid:
        """Return a uid with this number, from 0 to 2**64 - 1. Raises ``ValueError`` for any
        other."""
        return Uid(label, value)

    @staticmethod
    def from_string(uid: str) -> Uid:
        """Parse a uid that ``str()`` wrote. Raises ``ValueError`` for other text."""
        match = re.fullmatch(_UID, uid)
        if match is None:
            raise ValueError(f"not a uid: {uid!r}; one is label, label<number> or <number>")
        value = None
        if match[2]:
            value = 0
            for digit in match[2]:
                value = value * len(_DIGITS) + _DIGITS.index(digit)
        return Uid(match[1] or None, value)

    @property
    def is_instance(self) -> bool:
        """Whether the uid has a number, with or without a label."""
        return self.instance_value is not None

    @property
    def is_singleton(self) -> bool:
        """Whether the uid is a label without a number."""
        return self.instance_value is None

    def __str__(self) -> str:
        label = self.label or ""
        if self.instance_value is None:
            return label
        rest, digits = self.instance_value, ""
        for _ in range(_NUM_DIGITS):
            rest, digit = divmod(rest, len(_DIGITS))
            digits = _DIGITS[digit] + digits
        return f"{label}<{digits}>"


class ProcId(msgspec.Struct, frozen=True):
    """The name of a process."""

    uid: Uid

    @staticmethod
    def from_string(proc_id: str) -> ProcId:
        """Parse an id that ``str()`` wrote. Raises ``ValueError`` for other text."""
        return ProcId(Uid.from_string(proc_id))

    @property
    def label(self) -> str | None:
        """Return the label of its uid; ``None`` if that is only a number."""
        return self.uid.label

    def __str__(self) -> str:
        return str(self.uid)


class ActorAddr(msgspec.Struct, frozen=True):
    """The address of one actor: its name, its process, and where that process listens.

    ``uid`` is the uid of the actor mesh, which names one actor within a process. Without a ``uid``
    the name is the uid.
    """

    addr: str
    proc_name: str
    actor_name: str
    uid: str = ""

    def __post_init__(self) -> None:
        if not self.uid:
            force_setattr(self, "uid", self.actor_name)
        if self.addr.startswith("local:"):
            # The older spelling of an address within one process.
            force_setattr(self, "addr", "inproc://" + self.addr.removeprefix("local:"))

    @property
    def label(self) -> str | None:
        """Return the actor's name; ``None`` if it is empty."""
        return self.actor_name or None

    @property
    def proc_label(self) -> str | None:
        """Return the name of its process; ``None`` if it is empty."""
        return self.proc_name or None

    @property
    def pid(self) -> str:
        """Return ``uid``, under its older name."""
        return self.uid

    @property
    def proc_id(self) -> str:
        """Return the actor's process and where it listens, as ``name@address``."""
        return f"{self.proc_name}@{self.addr}"

    @property
    def is_root(self) -> bool:
        """Whether this is the client itself, or an actor whose name is its uid."""
        return self.uid in ("root", self.actor_name)

    @staticmethod
    def from_string(actor_addr_str: str) -> ActorAddr:
        """Parse an address that ``str()`` wrote. Raises ``ValueError`` for other text."""
        match = re.fullmatch(_ADDR, actor_addr_str)
        if match is None:
            raise ValueError(f"not the address of an actor: {actor_addr_str!r}")
        return ActorAddr(match[4], match[3], match[1], match[2] or "")

    def __str__(self) -> str:
        if self.uid == self.actor_name:
            return f"{self.actor_name}.{self.proc_id}"
        return f"{self.actor_name}<{self.uid}>.{self.proc_id}"
