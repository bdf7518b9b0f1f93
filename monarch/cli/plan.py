"""``--plan``: what a run would be, without starting any of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from monarch.cli.place import Place
from monarch.runs.recipe import Recipe


def plan_text(recipe: Recipe, config: Any, place: Place) -> str:
    """Meshes and ranks, and what the recipe's own ``plan`` adds: parameters, memory."""
    num_ranks = place.num_hosts * place.procs_per_host
    rows: dict[str, Any] = {
        "recipe": f"{recipe.wanted}, {recipe.summary}".rstrip(", "),
        "where": place.text,
        "mesh": f"hosts: {place.num_hosts}, procs: {place.procs_per_host}",
        "ranks": num_ranks,
    }
    plan = recipe.function("plan")
    told = plan(config, place.num_hosts, place.procs_per_host) if plan else None
    if isinstance(told, Mapping):
        rows |= {str(name): value for name, value in told.items()}
    width = max(map(len, rows))
    lines = [f"{name:<{width}}  {value}" for name, value in rows.items()]
    if told is not None and not isinstance(told, Mapping):
        lines.append(str(told).rstrip())
    return "\n".join(lines)
