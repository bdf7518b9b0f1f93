"""Findings of an audit, as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

Kind = Literal[
    "code", "lines", "gone", "trial", "class", "native", "value", "module", "running", "default",
    "cache", "graph",
]  # fmt: skip

# Old code that will run again. The other kinds stay old by design: see docs/reload.md.
_STALE: frozenset[Kind] = frozenset(
    {"code", "lines", "gone", "trial", "class", "native", "module", "default", "graph"}
)


class AuditFinding(msgspec.Struct, frozen=True):
    """Live objects of one kind and origin that are not what a fresh import would give.

    ``name`` is qualified: `module.qualname`. ``text`` is the finding in one line.
    """

    kind: Kind
    name: str
    count: int
    text: str

    @property
    def is_stale(self) -> bool:
        return self.kind in _STALE

    def __str__(self) -> str:
        return self.text


class AuditReport(msgspec.Struct, frozen=True):
    """The result of an audit: ``stale`` are objects that run other code than their files have,
    ``kept`` are objects that stay old by design.

    ``seconds`` is the time that the audit took, ``num_looked_at`` the number of functions and
    classes that it compared.
    """

    findings: Sequence[AuditFinding] = ()
    num_looked_at: int = 0
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether all live objects run the code of their files."""
        return not self.stale

    @property
    def stale(self) -> list[str]:
        return [str(finding) for finding in self.findings if finding.is_stale]

    @property
    def kept(self) -> list[str]:
        return [str(finding) for finding in self.findings if not finding.is_stale]

    def __str__(self) -> str:
        looked = f"looked at {self.num_looked_at:,} functions and classes"
        if not self.findings:
            return f"{looked}: all run the code of their files"
        return "\n".join([looked, *(f"  {text}" for text in (*self.stale, *self.kept))])


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: `1 closure`, `3 closures`, `2 instances`."""
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"
