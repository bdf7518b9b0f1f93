"""Which code runs on which host, where hosts that belong together run several states of it.

A push to a slice changes the code there; the other hosts keep theirs. Each part may be called by
itself. No call may go to both: its collectives would mix two states. Hosts belong together once a
push was for both, or two pushes were of one workspace; so do the hosts of a mesh whose procs were
spawned for one state. No locks are needed: the records are replaced, never changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from monarch.wire.address import Uid
from monarch.wire.host_code import HostCode


class CodeState(NamedTuple):
    """The code that processes run, or started with: a generation, and the digest of its
    workspace."""

    generation: int = 0
    digest: str = ""


UNBORN = CodeState()
"""The state of procs that were spawned before their owner knew of any push."""

_NOTHING: tuple[int, Mapping[Uid, HostCode]] = (0, {})


class Laggards(NamedTuple):
    """The hosts of a mesh that run older code than ``wanted``, each with the state that it runs.

    Hosts of one family have the same workspace. ``wanted`` is the newest state among them.
    """

    hosts: Mapping[Uid, CodeState]
    wanted: CodeState


class CodePush(NamedTuple):
    """A push: the hosts in ``covers`` switch to its code; the hosts in ``others`` keep their code.

    All of them have the same workspace, whose name is ``family``.
    """

    generation: int
    digest: str
    family: str
    covers: Sequence[Uid]
    others: Sequence[HostCode]

    def codes(self) -> Iterator[HostCode]:
        for host in self.covers:
            yield HostCode(host, self.generation, self.digest, self.family)
        yield from self.others


class CodeStates:
    """The code states of hosts, as a process knows them.

    The root (``is_root``) keeps all states and sends them with each push. Another process has the
    states of the last push, or, before any push, those it got from its owner at its start.
    ``is_one``: all hosts run the same code, as in nearly all programs.
    """

    def __init__(self) -> None:
        self.is_root = False
        self.is_one = True
        #: The states that this process knows, by host.
        self._codes: dict[Uid, HostCode] = {}
        #: Those of families whose hosts run different states.
        self._divided: Mapping[Uid, HostCode] = {}
        #: The generation of a change in progress, and what `_divided` will be after it.
        self._coming = _NOTHING

    def found(self, host: Uid, generation: int, digest: str) -> None:
        """Record the state that a host had before any push; its procs will run that."""
        if generation and host not in self._codes:
            self._use({**self._codes, host: HostCode(host, generation, digest, f"= {digest}")})

    def inherit(self, codes: Iterable[HostCode]) -> None:
        """Take over the records of code states that the owner had when it spawned this process."""
        self._use({code.host: code for code in codes})

    def to_inherit(self) -> tuple[HostCode, ...]:
        return tuple(self._divided.values())

    def brought(self, host: Uid, digest: str) -> None:
        """Record that an idle host has got the code of another host, which runs ``digest``.

        Does nothing if no known host runs ``digest``.
        """
        for code in self._codes.values():
            if code.digest == digest and code.host != host:
                self._use({**self._codes, host: msgspec.structs.replace(code, host=host)})
                return

    def left_by(self, family: str, hosts: Sequence[Uid]) -> list[HostCode]:
        """Return the hosts that a push to ``hosts`` does not reach, but that have its workspace.

        Hosts have the same workspace if their families are equal. ``family`` is the family of the
        push.
        """
        families = {self._codes[host].family for host in hosts if host in self._codes}
        families.add(family)
        reached = set(hosts)
        return [
            HostCode(code.host, code.generation, code.digest, family)
            for code in self._codes.values()
            if code.family in families and code.host not in reached
        ]

    @property
    def coming(self) -> int:
        """The generation of a change in progress, which may be switched to or cancelled; 0 without
        one."""
        return self._coming[0]

    def expect(self, change: CodePush) -> None:
        """Note a coming change of code, which will be switched to or cancelled."""
        self._coming = change.generation, _divided(self._with(change))
        self._look()

    def expect_nothing(self) -> None:
        self._coming = _NOTHING
        self._look()

    def switched(self, change: CodePush) -> dict[Uid, HostCode]:
        """Record that hosts run the pushed code from now on. Returns the states before, for
        `go_back`."""
        codes_before = self._codes
        self._use(self._with(change))
        return codes_before

    def go_back(self, codes: dict[Uid, HostCode]) -> None:
        """Take back a switch; ``codes`` is what `switched` returned."""
        self._use(codes)

    def laggards(self, hosts: Iterable[Uid], born: CodeState) -> Laggards | None:
        """Return the hosts among ``hosts`` that run older code than the newest of their family.

        Hosts of one family have the same workspace. ``born`` is the state for which the procs of
        the mesh were spawned; a host whose last switch is older counts as running ``born``. None if
        no host is behind.
        """
        return _laggards(self._divided, hosts, born)

    def crossing(self, hosts: Iterable[Uid], born: CodeState) -> int:
        """Return the generation of a coming switch that will leave some of ``hosts`` on older code.

        0 if there is none.
        """
        generation, divided = self._coming
        return generation if divided and _laggards(divided, hosts, born) else 0

    def _with(self, change: CodePush) -> dict[Uid, HostCode]:
        named = {code.host: code for code in change.codes()}
        rest = {
            host: code
            for host, code in self._codes.items()
            if code.family != change.family and host not in named
        }
        return {**rest, **named} if self.is_root or change.others else rest

    def _use(self, codes: dict[Uid, HostCode]) -> None:
        self._codes = codes
        self._divided = _divided(codes)
        self._look()

    def _look(self) -> None:
        self.is_one = not self._divided and not self._coming[1]


def _divided(codes: Mapping[Uid, HostCode]) -> Mapping[Uid, HostCode]:
    """Return the hosts of workspaces (families) whose hosts run different states."""
    digests: dict[str, set[str]] = {}
    for code in codes.values():
        digests.setdefault(code.family, set()).add(code.digest)
    return {host: code for host, code in codes.items() if len(digests[code.family]) > 1}


def _laggards(
    divided: Mapping[Uid, HostCode], hosts: Iterable[Uid], born: CodeState
) -> Laggards | None:
    families: dict[str, dict[Uid, CodeState]] = {}
    for host in hosts:
        code = divided.get(host)
        if code is not None:
            is_older = code.generation <= born.generation
            state = born if is_older else CodeState(code.generation, code.digest)
            families.setdefault(code.family, {})[host] = state
    for states in families.values():
        newest = max(states.values())
        behind = {host: state for host, state in states.items() if state.digest != newest.digest}
        if behind:
            return Laggards(behind, newest)
    return None


class WorkspaceState(NamedTuple):
    """A state of the workspace: its generation and its digest.

    ``order`` counts the pushes that this process knows. It is 0 for a state that a host reported
    when this process attached to it.
    """

    order: int
    generation: int
    digest: str


class WorkspaceStates:
    """The workspace state that each host should have, which is that of the last push to its
    mesh.
    """

    def __init__(self) -> None:
        self._by_host: dict[Uid, WorkspaceState] = {}
        self._order = 0

    def found(self, host: Uid, generation: int, digest: str) -> None:
        """Record the state that a host reports, unless a push has already set the state that it
        should have.
        """
        state = self._by_host.get(host)
        if generation and (state is None or not state.order):
            self._by_host[host] = WorkspaceState(0, generation, digest)

    def pushed(self, hosts: Iterable[Uid], generation: int, digest: str) -> None:
        """Record that these hosts were brought to a state."""
        self._order += 1
        state = WorkspaceState(self._order, generation, digest)
        self._by_host.update(dict.fromkeys(hosts, state))

    def wanted(self, hosts: Iterable[Uid]) -> WorkspaceState:
        """Return the state that all processes on these hosts should run.

        Its digest is "" if no state is known.
        """
        states = [self._by_host[uid] for uid in hosts if uid in self._by_host]
        return max(states, default=WorkspaceState(0, 0, ""))

    def having(self, digest: str) -> list[Uid]:
        """Return the hosts that should have this state."""
        return [uid for uid, state in self._by_host.items() if state.digest == digest]
