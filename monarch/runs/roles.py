"""Roles: some procs of a run's mesh train, others evaluate, or generate.

A recipe declares its roles, with the default number of procs of each: ``ROLES = {"train": 2,
"eval": 1}``. ``--roles train=4,eval=2``, or ``[roles]`` of monarch.toml, changes the numbers.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping

from monarch.actor import ProcMesh
from monarch.errors import JobError

_ROLE = re.compile(r"\s*(\w+)\s*=\s*([1-9]\d*)\s*")


def read_roles(text: str) -> dict[str, int]:
    """Return the number of procs of each role in a text such as ``train=4,eval=2``.

    Raises ``JobError`` if the text cannot be read.
    """
    sizes: dict[str, int] = {}
    for part in text.split(","):
        match = _ROLE.fullmatch(part)
        if match is None or match[1] in sizes:
            raise JobError(
                f"--roles {text}: {part!r} is not understood; say it as in --roles train=4,eval=2"
            )
        sizes[match[1]] = int(match[2])
    return sizes


def chosen_roles(
    recipe: str, own: Mapping[str, int], option: str | None, project: Mapping[str, int]
) -> dict[str, int]:
    """Return how many procs each role gets, from the option, else monarch.toml, else the recipe.

    Empty for a recipe without roles. Raises ``JobError`` for an unknown name, and for an option
    that a recipe without roles cannot have.
    """
    if not own:
        if option is not None:
            raise JobError(
                f'{recipe} has no roles: a recipe says which it has by ROLES = {{"train": 2, '
                '"eval": 1}, and takes them by record.meshes_of(procs) (docs/roles.md)'
            )
        return {}
    sizes, origin = project, "[roles] of monarch.toml"
    if option is not None:
        sizes, origin = read_roles(option), "--roles"
    for name in sizes:
        if name not in own:
            close = difflib.get_close_matches(name, own, 1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise JobError(f"{origin}: {recipe} has the roles {', '.join(own)}, no {name!r}.{hint}")
    return {**own, **sizes}


def procs_on_host(sizes: Mapping[str, int], num_hosts: int) -> int:
    """Return how many procs each host has for all roles together.

    Raises ``JobError`` if the hosts cannot have equal numbers.
    """
    total = sum(sizes.values())
    if total % num_hosts:
        raise JobError(
            f"the roles {_listed(sizes)} are {total} procs, which {num_hosts} hosts cannot have in "
            f"equal numbers: make them a multiple of {num_hosts}, or take fewer --hosts"
        )
    return total // num_hosts


def meshes_of(procs: ProcMesh, sizes: Mapping[str, int]) -> dict[str, ProcMesh]:
    """Return a part of the mesh for each role, in the order of ranks; spare procs are in none.

    Raises ``JobError`` if there are fewer procs than the roles take.
    """
    total = sum(sizes.values())
    if total > len(procs):
        raise JobError(f"the roles {_listed(sizes)} take {total} procs, and there are {len(procs)}")
    ranks, meshes, first = procs.flatten("rank"), {}, 0
    for name, size in sizes.items():
        meshes[name] = ranks.slice(rank=slice(first, first + size))
        first += size
    return meshes


def _listed(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items())
