"""A running job as programs see it: its hosts, and what can be asked of them."""

from __future__ import annotations

from collections.abc import Callable

from monarch.actor import HostMesh
from monarch.job.services import TelemetryConfig
from monarch.observe.answer import QueryTable
from monarch.observe.query import QueryEngine
from monarch.observe.visit import MeshVisit, hosts_of
from monarch.runtime.client_agent import client


class JobState:
    """The host meshes of a running job, each as an attribute of its name.

    ``query_engine_client`` answers SQL where the job was told to ``enable_telemetry``, else it is
    ``None``; ``dashboard_url`` is where its page is, if it has one.
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
        """The answer to ``sql`` over what all processes of this program remember, gathered now; see
        docs/observe.md for tables. Raises ``QueryError``, also where DuckDB is not installed."""
        return engine().table(sql)

    def serve(self, config: TelemetryConfig, start_dashboard: Callable[[int], str]) -> None:
        """Have what ``config`` asks for; ``start_dashboard`` gives a page's URL for a port."""
        self.query_engine = self.query_engine_client = engine()
        visit_hosts().keep(config.retention_secs)
        if config.include_dashboard:
            self.telemetry_url = self.dashboard_url = start_dashboard(config.dashboard_port)


def visit_hosts() -> MeshVisit:
    """All hosts of this program, to ask them things."""
    agent = client()
    return MeshVisit(agent.node, hosts_of(agent))


def engine() -> QueryEngine:
    """Answers questions to all hosts of this program."""
    return QueryEngine(visit_hosts)
