"""The examination of all hosts: each by itself, then whether they reach each other."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from monarch.errors import JobError
from monarch.job.doctor.findings import Finding, of_all, of_host
from monarch.job.doctor.probe_session import ProbeSession

_MOST_AT_ONCE = 64

OpenProbe = Callable[[], ProbeSession]


class Examination:
    """The examination of a job's hosts: ``told`` is each host's answer; ``findings`` are the
    results."""

    def __init__(self, seconds: float, *, port: int = 0, brings_monarch: bool = False) -> None:
        self._seconds, self._port = seconds, port
        self._brings_monarch = brings_monarch
        self.told: dict[str, dict[str, Any]] = {}
        self.findings: list[Finding] = []

    def run(self, probes: Mapping[str, OpenProbe], mend: Mapping[str, str]) -> None:
        """Examine the hosts of these probes; each of the three steps takes at most ``seconds``.

        ``mend`` gives, by host, the advice for a host that cannot be reached.
        """
        sessions = self._open(probes, mend)
        try:
            here = {name: one for name, one in sessions.items() if self._look(name, one, mend)}
            if len(here) > 1:
                self._reach(here)
            self.findings += of_all(self.told)
        finally:
            with ThreadPoolExecutor(_MOST_AT_ONCE) as pool:
                list(pool.map(lambda one: one.close(), sessions.values()))

    def _open(
        self, probes: Mapping[str, OpenProbe], mend: Mapping[str, str]
    ) -> dict[str, ProbeSession]:
        sessions: dict[str, ProbeSession] = {}
        for name, open_probe in probes.items():
            try:
                session = sessions[name] = open_probe()
            except OSError as error:
                text = f"cannot be reached: {error.strerror or error}"
                self.findings.append(Finding("failure", name, text, mend.get(name, "")))
            except JobError as error:
                text = f"cannot be reached: {error}"
                self.findings.append(Finding("failure", name, text, mend.get(name, "")))
            else:
                session.order({"do": "look", "port": self._port})
        self._deadline = time.monotonic() + self._seconds
        return sessions

    def _look(self, name: str, session: ProbeSession, mend: Mapping[str, str]) -> bool:
        told = session.answer(self._deadline)
        if "error" in told:
            words = told["error"]
            if words == "no answer in time":
                words = f"no answer within {self._seconds:.0f} s"
            text = f"cannot be looked at: {words}"
            self.findings.append(
                Finding("failure", name, text, mend_for(words, mend.get(name, "")))
            )
            return False
        self.told[name] = told
        # The host looked at its clock at some moment between the question and the
        # answer.
        skew = 0.0
        if "time" in told:
            skew = max(told["time"] - session.answered_at, 0.0) or min(
                told["time"] - session.asked_at, 0.0
            )
        self.findings += of_host(name, told, skew, brings_monarch=self._brings_monarch)
        return "time" in told

    def _reach(self, sessions: Mapping[str, ProbeSession]) -> None:
        """Make each host listen at a port, and have the others connect to all of its addresses."""
        deadline = time.monotonic() + self._seconds
        for session in sessions.values():
            session.order({"do": "listen"})
        ports = {name: one.answer(deadline).get("port", 0) for name, one in sessions.items()}
        at = {
            name: [(address, ports[name]) for _, address in self.told[name]["addresses"]]
            for name in sessions
            if ports[name]
        }
        asked = {name: [a for other in at if other != name for a in at[other]] for name in sessions}
        for name, session in sessions.items():
            session.order({"do": "knock", "at": asked[name]})
        found = {name: one.answer(deadline).get("reached", {}) for name, one in sessions.items()}
        self.findings += _of_reach(at, found, {name: self.told[name]["addresses"] for name in at})


def _of_reach(
    at: Mapping[str, Sequence[tuple[str, int]]],
    found: Mapping[str, Mapping[str, Any]],
    addresses: Mapping[str, Sequence[Sequence[str]]],
) -> list[Finding]:
    interfaces = {name: {address: iface for iface, address in addresses[name]} for name in at}
    findings, good = [], dict.fromkeys(at, "")
    for name in at:
        by_address = {
            address: [other for other in at if other != name
                      and not isinstance(found[other].get(f"{address}:{port}"), float)]
            for address, port in at[name]
        }  # fmt: skip
        whole = [address for address, cut_off in by_address.items() if not cut_off]
        if whole:
            good[name] = f"{whole[0]} ({interfaces[name][whole[0]]})"
            continue
        cut_off = min(by_address.values(), key=len) if by_address else [o for o in at if o != name]
        tried = ", ".join(by_address) or "no address but loopback"
        findings.append(
            Finding(
                "failure", name,
                f"{', '.join(cut_off)} cannot connect to it (at {tried})",
                "open TCP between the hosts (firewall, security group): ranks talk to each other",
            )
        )  # fmt: skip
    if not findings:
        text = ", ".join(f"{name} at {where}" for name, where in good.items())
        findings.append(Finding("ok", "all hosts", f"reach each other: {text}"))
    several = {
        name: [iface for iface, _ in addresses[name]] for name in at if len(addresses[name]) > 1
    }
    if several and len(at) > 1:
        name, names = next(iter(several.items()))
        findings.append(
            Finding(
                "note", name, f"it has several interfaces: {', '.join(names)}",
                "NCCL and Gloo choose the first that works; name one with NCCL_SOCKET_IFNAME and "
                "GLOO_SOCKET_IFNAME",
            )
        )  # fmt: skip
    return findings


def mend_for(words: str, otherwise: str) -> str:
    """Return the advice for an error message of ssh, or ``otherwise``."""
    for part, mend in _MENDS.items():
        if part in words:
            return mend
    return otherwise


_MENDS = {
    "Permission denied": "give the host your public key: `ssh-copy-id HOST`, or name another user "
    "in ~/.ssh/config; ssh cannot ask for a password here",
    "Host key verification failed": "the host's key is new or has changed: see that it is the "
    "right machine, then `ssh-keygen -R HOST` and log in once by hand",
    "Could not resolve": "the name is unknown here: see ~/.ssh/config and the spelling in "
    "monarch.toml",
    "Connection refused": "no ssh server listens there: is the port right, in ~/.ssh/config?",
    "timed out": "the host is off, or a firewall is between: try `ssh -v HOST`",
    "No route to host": "the host is off, or the network to it is down",
    "not found": "name the Python there with `python` in monarch.toml",
    "No such file": "name the Python there with `python` in monarch.toml",
}
