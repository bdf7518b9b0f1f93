"""A running job as programs see it: its host meshes, and queries about them."""

from __future__ import annotations

from collections.abc import Callable

from monarch.actor import HostMesh
from monarch.job.services import TelemetryConfig
from monarch.observe.answer import QueryTable
from monarch.observe.query import QueryEngine
from monarch.observe.visit import MeshVisit, hosts_of
from monarch.runtime.client_agent import client


class JobState:
    """The host meshes of a running job, each as an attribute with its name.

    ``query_engine_client`` answers SQL after ``enable_telemetry``, and is ``None`` otherwise;
    ``dashboard_url`` is the URL of its page, if it has one.
    """

    query_engine: QueryEngine | None = None
    query_engine_client: QueryEngine | None = None
    telemetry_url: str | None = None
    dashboard_url: str | None = None
    admin_url: str | None = None

    def __init__(self, hosts: dict[str, HostMesh]) -> None:
        self._hosts = hosts

    def __getattr__(self, name: str) -> HostMesh:
        hosts: dict[str, HostMesh] = self.__dict__.get("_hosts", {})
        if name in hosts:
            return hosts[name]
        raise AttributeError(
            f"'{name}' is not a valid host mesh name. Available names: {', '.join(hosts)}"
        )

    def __repr__(self) -> str:
        return f"JobState({', '.join(self._hosts)})"

    def query(self, sql: str) -> QueryTable:
        """Return the answer to ``sql`` over the records of all processes of this program, gathered
        now.

        docs/observe.md lists the tables. Raises ``QueryError``, also if DuckDB is not installed.
        """
        return engine().table(sql)

    def serve(self, config: TelemetryConfig, start_dashboard: Callable[[int], str]) -> None:
        """Start the services of ``config``; ``start_dashboard`` returns a page's URL for a port."""
        self.query_engine = self.query_engine_client = engine()
        visit_hosts().keep(config.retention_secs)
        if config.include_dashboard:
            self.telemetry_url = self.dashboard_url = start_dashboard(config.dashboard_port)


def visit_hosts() -> MeshVisit:
    """Return a visit to all hosts of this program, to ask them questions."""
    agent = client()
    return MeshVisit(agent.node, hosts_of(agent))


def engine() -> QueryEngine:
    """Return an engine that answers queries about all hosts of this program."""
    return QueryEngine(visit_hosts)
