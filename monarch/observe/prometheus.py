"""Writes a snapshot of a mesh in Prometheus' text format."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

_Sample = tuple[dict[str, Any], Any]
"""The labels of a figure, and the figure; ``None`` if it is not known."""


def exposition(
    snapshot: Mapping[str, Any], runs: Sequence[Mapping[str, Any]], *, by_rank: bool
) -> str:
    """Return the metrics for Prometheus: of a snapshot (`LiveView.update`), and runs' summaries.

    With ``by_rank`` each rank has its own figures: there may be thousands.
    """
    hosts = [host for host in snapshot["hosts"] if "error" not in host]
    ranks = snapshot["ranks"]
    families: list[tuple[str, str, str, list[_Sample]]] = [
        ("host_up", "Whether a host answers.", "gauge",
         [({"host": h["name"]}, int("error" not in h)) for h in snapshot["hosts"]]),
        ("host_cpu_ratio", "Busy share of its CPUs.", "gauge",
         [({"host": h["name"]}, h["cpu"]) for h in hosts]),
        ("host_memory_bytes", "Memory in use.", "gauge",
         [({"host": h["name"]}, h["mem_used"]) for h in hosts]),
        ("gpu_busy_percent", "Busy share of a GPU.", "gauge",
         [({"host": h["name"], "gpu": g["index"]}, g.get("busy"))
          for h in hosts for g in h["gpus"]]),
        ("calls_per_second", "Calls that ended, a second.", "gauge",
         _summed(ranks, "rate", by_rank)),
        ("queue_messages", "Messages that wait for their turn.", "gauge",
         _summed(ranks, "queue", by_rank)),
        ("memory_bytes", "Resident memory of procs.", "gauge", _summed(ranks, "rss", by_rank)),
        ("ranks", "Ranks by what they do.", "gauge", _by_status(ranks)),
        ("failures_seen", "Failures since this page was started.", "counter",
         [({}, len(snapshot["failures"]))]),
        ("run_step", "The last step of a run.", "gauge",
         [({"run": run["name"]}, run["step"]) for run in runs]),
        ("run_metric", "The last figures of a run.", "gauge",
         [({"run": run["name"], "metric": name}, value)
          for run in runs for name, value in run["values"].items()]),
    ]  # fmt: skip
    lines: list[str] = []
    for name, about, kind, samples in families:
        present = [(labels, value) for labels, value in samples if value is not None]
        if present:
            lines.append(f"# HELP monarch_{name} {about}")
            lines.append(f"# TYPE monarch_{name} {kind}")
            lines.extend(f"monarch_{name}{_labels(labels)} {value}" for labels, value in present)
    return "\n".join(lines) + "\n"


def _summed(ranks: Sequence[Mapping[str, Any]], field: str, by_rank: bool) -> list[_Sample]:
    sums: dict[tuple[Any, ...], float] = defaultdict(float)
    for rank in ranks:
        key = (rank["host"], rank["actor"], *((rank["rank"],) if by_rank else ()))
        sums[key] += rank[field]
    names = ("host", "actor", "rank")
    return [(dict(zip(names, key, strict=False)), value) for key, value in sums.items()]


def _by_status(ranks: Sequence[Mapping[str, Any]]) -> list[_Sample]:
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for rank in ranks:
        counts[rank["actor"], rank["status"]] += 1
    return [({"actor": a, "status": s}, number) for (a, s), number in counts.items()]


def _labels(labels: Mapping[str, Any]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: Any) -> str:
    return str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
