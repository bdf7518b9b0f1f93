"""Allocations on machines with a login, through which a host agent is started and kept."""

from __future__ import annotations

import os
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from monarch.errors import JobError
from monarch.job.job import JobTrait
from monarch.job.kinds.login_session import END_SECONDS, LoginSession, ask_all, end_all
from monarch.job.kinds.remote import RemoteJob, connection_error, job_secret
from monarch.net.identifiers import new_uid
from monarch.runtime.client_agent import client
from monarch.runtime.uninterrupted import Uninterrupted

_START_SECONDS = 90.0
_REACH_SECONDS = 3.0


class LoginHost(NamedTuple):
    """A host agent on a machine with a login.

    ``started`` is its start time, which a later process with the same pid does not have;
    ``directory`` is its own folder there.
    """

    mesh: str
    name: str
    url: str
    pid: int
    started: int
    directory: str
    workspace: str


class LoginJob(RemoteJob):
    """A job on machines with a login; subclasses define the login command and the hosts'
    addresses."""

    def __init__(
        self,
        python_exe: str = "python",
        monarch_port: int = 22222,
        *,
        env: Mapping[str, str] | None = None,
        preload: Sequence[str] = (),
    ) -> None:
        super().__init__(preload)
        self.python_exe = python_exe
        self.monarch_port = monarch_port
        self.env = dict(env or {})
        #: The names of the hosts of each mesh, as the login has them.
        self.names: dict[str, list[str]] = {}
        self._hosts: list[LoginHost] = []
        #: The logins that have started hosts, which end with them before ``_keep``.
        self._logins: dict[str, LoginSession] = {}
        #: The hosts of these logins.
        self._starting: list[LoginHost] = []
        self._allocation = ""
        #: The settings with which it was made, if it is reached by other commands now.
        self._made_as: dict[str, Any] = {}

    @abstractmethod
    def _login(self, host: str) -> list[str]:
        """Return the command that logs in to ``host`` and runs the shell command that is
        appended."""

    @abstractmethod
    def _address(self, host: str) -> str:
        """Return the name or address at which ``host`` is reached over TCP."""

    def _why_unreachable(self, host: str) -> str:
        """Return a likely reason why ``host`` cannot be reached at its port, if its login works."""
        return "is there a firewall? Other hosts and this machine must reach that port"

    def add_mesh(self, name: str, hosts: Sequence[str]) -> None:
        """Add a mesh; ``hosts`` are the names used for the login.

        Raises ``ValueError`` if there are none, if one is listed twice, or if one is no host name.
        """
        if not hosts:
            raise ValueError(f"mesh {name!r} needs at least one host")
        listed = [host for names in self.names.values() for host in names]
        for host in hosts:
            if host in listed:
                raise ValueError(f"{host!r} is listed twice: a host belongs to one mesh, once")
            if not host or host.startswith("-") or any(char.isspace() for char in host):
                raise ValueError(f"{host!r} is not the name of a host")
            listed.append(host)
        self.names[name] = list(hosts)

    @property
    def meshes(self) -> dict[str, int]:
        """Return the number of hosts of each mesh, by its name."""
        return {name: len(hosts) for name, hosts in self.names.items()}

    @property
    def hosts(self) -> Sequence[LoginHost]:
        """Return the started hosts, mesh by mesh; none before the job is applied."""
        return self._hosts

    def _begin(self, client_script: str | None) -> None:
        self._refuse_script(client_script)
        if not self.names:
            raise JobError("the job has no hosts: name them with `add_mesh(name, hosts)`")
        self._secret = job_secret()
        self._allocation = new_uid()
        meshes = {host: mesh for mesh, hosts in self.names.items() for host in hosts}
        self._start({host: self._start_order(host) for host in meshes}, meshes)
        self._reach(self._starting)

    def _start_order(self, host: str) -> dict[str, Any]:
        env = dict(self.env)
        if "WORKSPACE_DIR" in env and sum(self.meshes.values()) > 1:
            # Two hosts must not share one folder.
            env["WORKSPACE_DIR"] = os.path.join(env["WORKSPACE_DIR"], re.sub(r"[^\w.-]", "_", host))
        return {
            "do": "start",
            "name": host,
            "address": self._address(host),
            "port": self.monarch_port,
            "secret": self._secret.hex(),
            "allocation": self._allocation,
            "env": env,
            "workspace": "",
        }

    def _start(self, orders: Mapping[str, dict[str, Any]], meshes: Mapping[str, str]) -> None:
        """Start all host agents at once. They outlive their logins only after ``_keep``."""
        for host in orders:
            self._logins[host] = LoginSession(self._login(host), self.python_exe)
        answers = ask_all(self._logins, orders, _START_SECONDS)
        _check("could not start the host agent on", _errors_of(answers))
        self._starting = [LoginHost(meshes[host], host, **answers[host]) for host in orders]

    def _reach(self, hosts: Sequence[LoginHost]) -> None:
        """Raise ``JobError`` for hosts whose ports this machine cannot reach."""
        names = {host.url: host.name for host in hosts}
        replies = self.ask(list(names), patiently=True)
        errors = {
            names[url]: f"{_why_closed(url)} at {url}, though one can log in: "
            f"{self._why_unreachable(names[url])}"
            for url, reply in replies.items()
            if reply.error
        }
        _check("cannot reach the host agent on", errors)

    def _create(self, client_script: str | None) -> None:
        self._keep()

    def _keep(self) -> None:
        """Make the started hosts permanent, and end the logins."""
        self._hosts = [host for host in self._hosts if host.name not in self._logins]
        self._hosts += self._starting
        order = [host for names in self.names.values() for host in names]
        self._hosts.sort(key=lambda host: order.index(host.name))
        self._starting = []
        orders = {host: {"do": "keep"} for host in self._logins}
        answers = ask_all(self._logins, orders, END_SECONDS)
        end_all(self._logins)
        _check("the login ended too soon on", _errors_of(answers))

    def repair(self) -> list[str]:
        """Restart the agents of hosts that have ended, at their ports; return the hosts' names.

        Raises ``JobError`` if an agent cannot be started, or its host's login fails.
        """
        ended = self._ended_hosts()
        orders = {}
        for host in ended:
            as_before = {"port": urlsplit(host.url).port, "workspace": host.workspace}
            orders[host.name] = self._start_order(host.name) | as_before
        try:
            self._start(orders, {host.name: host.mesh for host in ended})
            with Uninterrupted():
                self._keep()
                if ended and self._state_path is not None:
                    self.dump(self._state_path)
        except BaseException:
            self._abandon()
            raise
        return [host.name for host in ended]

    def why_ended(self) -> str:
        """Log in to each host that has ended, and return a line for each, with the reason."""
        ended = self._ended_hosts()
        answers = self._log_in_and("look", ended)
        return "\n".join(f"{host.name}: {_last_words(host, answers[host.name])}" for host in ended)

    def _ended_hosts(self) -> list[LoginHost]:
        ended = set(self.ended())
        return [host for host in self._hosts if host.url in ended]

    def _kill(self) -> None:
        self._abandon()
        self._forget_links()
        answers = self._log_in_and("end", self._hosts)
        errors = _errors_of(answers)
        for host, answer in answers.items():
            if pids := answer.get("left"):
                errors.setdefault(host, f"SIGKILL did not end pid {', '.join(map(str, pids))}")
        self._hosts = [host for host in self._hosts if host.name in errors]
        numbers = ", ".join(f"{host.pid} on {host.name}" for host in self._hosts)
        _check(
            "could not end the host agent on",
            errors,
            f"\nIt may go on running (pid {numbers}); all others have ended. Try again once it can "
            f"be reached; to forget it, remove {self._state_path or 'its state'}",
        )

    def _abandon(self) -> None:
        """End the agents that were started and not kept, by ending their logins."""
        errors = end_all(self._logins)
        self._starting = []
        _check("cannot see whether the host agent has ended on", errors)

    def _log_in_and(self, action: str, hosts: Sequence[LoginHost]) -> dict[str, dict[str, Any]]:
        """Log in to each host and order an action; return the answers, or an ``error`` each."""
        orders: dict[str, dict[str, Any]] = {}
        for host in hosts:
            agent = {"pid": host.pid, "started": host.started, "directory": host.directory}
            orders[host.name] = {"do": action, **agent}
        logins = {}
        try:
            for name in orders:
                logins[name] = LoginSession(self._login(name), self.python_exe)
            return ask_all(logins, orders, END_SECONDS)
        finally:
            end_all(logins)

    def can_run(self, spec: JobTrait) -> bool:
        """Whether ``spec`` asks for a job like this one: its kind, its hosts and its settings."""
        return isinstance(spec, type(self)) and self._as_made() == spec._wanted()

    def take_ways(self, now: JobTrait) -> None:
        if isinstance(now, LoginJob):
            self._made_as = self._as_made()
            self.python_exe = now.python_exe

    def _as_made(self) -> dict[str, Any]:
        return self._made_as or self._wanted()

    def _wanted(self) -> dict[str, Any]:
        """Return all settings that affect the hosts, as JSON data."""
        return {
            "python_exe": self.python_exe,
            "monarch_port": self.monarch_port,
            "env": self.env,
            "preload": self.preload,
            "names": self.names,
        }

    def _to_data(self) -> dict[str, Any]:
        return {
            "wanted": self._as_made(),
            "secret": self._secret.hex(),
            "allocation": self._allocation,
            "hosts": [host._asdict() for host in self._hosts],
        }

    @classmethod
    def _from_data(cls, data: dict[str, Any]) -> LoginJob:
        settings = dict(data["wanted"])
        names = settings.pop("names")
        job = cls(**settings)
        for name, hosts in names.items():
            job.add_mesh(name, hosts)
        job._secret = bytes.fromhex(data["secret"])
        job._allocation = data["allocation"]
        job._hosts = [LoginHost(**host) for host in data["hosts"]]
        return job


def _errors_of(answers: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    return {host: answer["error"] for host, answer in answers.items() if "error" in answer}


def _check(problem: str, errors: Mapping[str, str], advice: str = "") -> None:
    """Raise ``JobError`` if any host has an error, with a line for each distinct error."""
    hosts: dict[str, list[str]] = {}
    for host, error in errors.items():
        hosts.setdefault(error, []).append(host)
    if hosts:
        lines = [f"{problem} {', '.join(names)}: {error}" for error, names in hosts.items()]
        raise JobError("\n".join(lines) + advice)


def _why_closed(url: str) -> str:
    gateway = client().node.gateway
    if gateway is not None:
        return gateway.knock(url, _REACH_SECONDS) or "no answer"
    parts = urlsplit(url)
    error = connection_error(parts.hostname or "", parts.port or 0, _REACH_SECONDS)
    return "no answer" if error is None else str(error.strerror or error)


def _last_words(host: LoginHost, answer: Mapping[str, Any]) -> str:
    if "error" in answer:
        return f"nobody listens at {host.url} any more, and to log in fails: {answer['error']}"
    state = "does not listen any more" if answer["is_running"] else "has ended"
    log = f"; the last lines of its log:\n{answer['log']}" if answer["log"] else ""
    return f"the host agent (pid {host.pid}) {state}{log}"
