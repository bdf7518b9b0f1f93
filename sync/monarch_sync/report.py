"""What a sync did: rich enough to assert on, short enough to read."""

from __future__ import annotations

from dataclasses import dataclass, field

from monarch_sync.errors import SyncFailed

__all__ = ["HostReport", "Problem", "SyncReport"]


@dataclass(frozen=True)
class Problem:
    """A path that could not be taken along, and why. The rest of the sync goes on."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass
class HostReport:
    """What one host got. ``kept`` are files that were changed there, saved under other names."""

    host: str
    num_written: int = 0
    num_deleted: int = 0
    num_moved: int = 0
    num_unchanged: int = 0
    bytes_sent: int = 0
    kept: list[str] = field(default_factory=list)
    error: str = ""


@dataclass
class SyncReport:
    """One push, over all hosts.

    ``seconds`` is the whole, ``seconds_by_step`` its parts. ``errors`` say why a push was
    refused: then no host and no process changed, and ``generation`` is still the old one.
    ``notes`` say what to know beside: what came along unasked, a lock file that changed.
    """

    generation: int = 0
    digest: str = ""
    hosts: list[HostReport] = field(default_factory=list)
    changed_files: list[str] = field(default_factory=list)
    seconds: float = 0.0
    seconds_by_step: dict[str, float] = field(default_factory=dict)
    modules_reloaded: list[str] = field(default_factory=list)
    functions_patched: list[str] = field(default_factory=list)
    actors_patched: dict[str, int] = field(default_factory=dict)
    needs_respawn: list[str] = field(default_factory=list)
    num_procs: int = 0
    problems: list[Problem] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every host and every process has the new state."""
        return not self.errors

    @property
    def bytes_sent(self) -> int:
        """Content and messages together, over all hosts."""
        return sum(host.bytes_sent for host in self.hosts)

    def raise_for_errors(self) -> None:
        """Raise ``SyncFailed`` if the push was refused."""
        if self.errors:
            raise SyncFailed(tuple(self.errors))

    def one_line(self) -> str:
        """``✓ gen 42  3 files → 16 hosts  38 ms  reloaded model.py  patched Trainer×128``"""
        took = f"{self.seconds * 1000:.0f} ms"
        if not self.ok:
            return f"✗ refused  {took}  no rank changed; still on gen {self.generation}"
        parts = [f"✓ gen {self.generation}", f"{_count(len(self.changed_files), 'file')} → "
                 f"{_count(len(self.hosts), 'host')}", took]  # fmt: skip
        if self.modules_reloaded:
            parts.append(f"reloaded {_some(self.modules_reloaded)}")
        if self.actors_patched:
            actors = [f"{name}×{num}" for name, num in self.actors_patched.items()]
            parts.append(f"patched {_some(actors)}")
        if self.needs_respawn:
            parts.append(f"needs respawn: {_some(self.needs_respawn)}")
        return "  ".join(parts)

    def __str__(self) -> str:
        lines = [self.one_line()]
        if self.ok and self.seconds_by_step:
            steps = "  ".join(f"{k} {v * 1000:.1f}" for k, v in self.seconds_by_step.items())
            lines.append(f"  ms: {steps}")
        for host in self.hosts:
            if self.ok or host.error:
                lines.append("  " + _host_line(host))
            lines += [f"    kept {name}" for name in host.kept]
        lines += [f"  left out {problem}" for problem in self.problems[:10]]
        if len(self.problems) > 10:
            lines.append(f"  left out {len(self.problems) - 10} more")
        lines += [f"  {note}" for note in self.notes]
        for error in self.errors:
            lines += [f"  {line}" for line in error.splitlines()]
        return "\n".join(lines)


def _host_line(host: HostReport) -> str:
    if host.error:
        return f"{host.host}: {host.error}"
    parts = [
        f"{num} {what}"
        for num, what in (
            (host.num_written, "written"), (host.num_moved, "moved"),
            (host.num_deleted, "deleted"), (host.num_unchanged, "unchanged"),
        )
        if num
    ]  # fmt: skip
    return f"{host.host}: {', '.join(parts) or 'nothing to do'}; {host.bytes_sent:,} bytes"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _some(names: list[str], limit: int = 3) -> str:
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {rest} more" if rest > 0 else "")
