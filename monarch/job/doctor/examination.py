"""The examination of all hosts: each by itself, then whether they reach each other."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from monarch.errors import JobError
from monarch.job.doctor.findings import Finding, of_all, of_host
from monarch.job.kinds.login_session import ScriptSession

_MOST_AT_ONCE = 64
_MAX_LINES = 6  # of a login's own error

OpenProbe = Callable[[], ScriptSession]


class Examination:
    """The examination of a job's hosts: ``told`` is each host's answer; ``findings`` are the
    results."""

    def __init__(self, seconds: float, *, port: int = 0, brings_monarch: bool = False) -> None:
        self._seconds, self._port = seconds, port
        self._brings_monarch = brings_monarch
        self.told: dict[str, dict[str, Any]] = {}
        self.findings: list[Finding] = []

    def run(self, probes: Mapping[str, OpenProbe], mend: Mapping[str, str]) -> None:
        """Examine the hosts of these probes, and record the findings.

        There are three steps: reach the hosts, read their facts, connect them to each other. Each
        takes at most ``seconds``. ``mend`` gives, by host, the advice for a host that cannot be
        reached.
        """
        sessions = self._open(probes, mend)
        deadline = time.monotonic() + self._seconds
        try:
            usable = {
                name: session
                for name, session in sessions.items()
                if self._look(name, session, deadline, mend.get(name, ""))
            }
            if len(usable) > 1:
                self._reach(usable)
            self.findings += of_all(self.told)
        finally:
            with ThreadPoolExecutor(_MOST_AT_ONCE) as pool:
                list(pool.map(lambda session: session.close(), sessions.values()))

    def _open(
        self, probes: Mapping[str, OpenProbe], mend: Mapping[str, str]
    ) -> dict[str, ScriptSession]:
        sessions: dict[str, ScriptSession] = {}
        for name, open_probe in probes.items():
            try:
                sessions[name] = open_probe()
            except JobError as error:
                text = f"cannot be reached: {error}"
                self.findings.append(Finding("failure", name, text, mend.get(name, "")))
            else:
                sessions[name].order({"do": "look", "port": self._port})
        return sessions

    def _look(self, name: str, session: ScriptSession, deadline: float, mend: str) -> bool:
        """Record a host's answer and its findings; return whether it can be used further."""
        told = session.answer(deadline)
        if "error" in told:
            error = "; ".join(map(str.strip, told["error"].splitlines()[-_MAX_LINES:]))
            if error == "no answer in time":
                error = f"no answer within {self._seconds:.0f} s"
            mend = next((advice for part, advice in _MENDS.items() if part in error), mend)
            self.findings.append(Finding("failure", name, f"cannot be looked at: {error}", mend))
            return False
        self.told[name] = told
        skew = 0.0
        if "time" in told:
            # The host read its clock at some moment between the question and the answer.
            ahead, behind = told["time"] - session.answered_at, told["time"] - session.asked_at
            skew = max(ahead, 0.0) or min(behind, 0.0)
        self.findings += of_host(name, told, skew, brings_monarch=self._brings_monarch)
        return "time" in told

    def _reach(self, sessions: Mapping[str, ScriptSession]) -> None:
        """Make each host listen at a port, and have the others connect to all of its addresses."""
        deadline = time.monotonic() + self._seconds
        for session in sessions.values():
            session.order({"do": "listen"})
        targets: dict[str, list[tuple[str, int]]] = {}
        for name, session in sessions.items():
            if port := session.answer(deadline).get("port", 0):
                targets[name] = [(ip, port) for _, ip in self.told[name]["addresses"]]
        for name, session in sessions.items():
            others = [target for other in targets if other != name for target in targets[other]]
            session.order({"do": "knock", "at": others})
        reached = {name: x.answer(deadline).get("reached", {}) for name, x in sessions.items()}
        addresses = {name: self.told[name]["addresses"] for name in targets}
        self.findings += _of_reach(targets, reached, addresses)


def _of_reach(
    targets: Mapping[str, Sequence[tuple[str, int]]],
    reached: Mapping[str, Mapping[str, Any]],
    addresses: Mapping[str, Sequence[Sequence[str]]],
) -> list[Finding]:
    """Return the findings about connections between hosts.

    ``targets`` are the addresses and ports of each host; ``reached`` has each host's attempts by
    "address:port": seconds, or an error; ``addresses`` are pairs of interface and address.
    """
    interfaces = {name: {ip: interface for interface, ip in addresses[name]} for name in targets}
    findings, good = [], []
    for name in targets:
        others = [other for other in targets if other != name]
        cut_off = {
            ip: [x for x in others if not isinstance(reached[x].get(f"{ip}:{port}"), float)]
            for ip, port in targets[name]
        }
        whole = [ip for ip, hosts in cut_off.items() if not hosts]
        if whole:
            good.append(f"{name} at {whole[0]} ({interfaces[name][whole[0]]})")
            continue
        hosts = min(cut_off.values(), key=len, default=others)
        tried = ", ".join(cut_off) or "no address but loopback"
        text = f"{', '.join(hosts)} cannot connect to it (at {tried})"
        mend = "open TCP between the hosts (firewall, security group): ranks talk to each other"
        findings.append(Finding("failure", name, text, mend))
    if not findings:
        findings.append(Finding("ok", "all hosts", f"reach each other: {', '.join(good)}"))
    several = [name for name in targets if len(addresses[name]) > 1]
    if several and len(targets) > 1:
        names = ", ".join(interface for interface, _ in addresses[several[0]])
        text = f"it has several interfaces: {names}"
        mend = (
            "NCCL and Gloo choose the first that works; name one with NCCL_SOCKET_IFNAME and "
            "GLOO_SOCKET_IFNAME"
        )
        findings.append(Finding("note", several[0], text, mend))
    return findings


# Advice for errors of ssh, by a part of their text.
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
