"""Names of host agents that a launcher chooses: ``NAME@URL`` instead of a bare URL.

A client and a worker with the same name in front of the URL mean the same worker, however its
machine's name is spelled. monarch ignores the name, since it knows hosts by the URL that they
advertise; programs and launchers that write such addresses work.

Launchers that start many workers from one description give all of them one list, in
``MONARCH_SERVICE_PROC_IDS``, and each its index in the list, in ``MONARCH_SERVICE_PROC_RANK``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from monarch.actor import ProcId, Uid

SERVICE_PROC_IDS_ENV = "MONARCH_SERVICE_PROC_IDS"
SERVICE_PROC_RANK_ENV = "MONARCH_SERVICE_PROC_RANK"


def new_service_proc_id() -> ProcId:
    """Return a new name for the agent of one host."""
    return ProcId(Uid.instance("service"))


def serialize_service_proc_ids(proc_ids: Sequence[ProcId]) -> str:
    """Return the names as the value of ``MONARCH_SERVICE_PROC_IDS``: a JSON list."""
    return json.dumps([str(proc_id) for proc_id in proc_ids])


def deserialize_service_proc_ids(serialized: str) -> list[ProcId]:
    """Parse the names that ``serialize_service_proc_ids`` wrote. Raises ``ValueError`` for
    others."""
    return [ProcId.from_string(proc_id) for proc_id in json.loads(serialized)]


def service_proc_addr(address: str, proc_id: ProcId | None) -> str:
    """Return ``NAME@URL``, or the URL alone if there is no name."""
    return address if proc_id is None else f"{proc_id}@{address}"


def service_proc_addrs(addresses: Sequence[str], proc_ids: Sequence[ProcId] | None) -> list[str]:
    """Return a ``NAME@URL`` for each pair. Raises ``ValueError`` if the numbers differ."""
    if proc_ids is None:
        return list(addresses)
    if len(addresses) != len(proc_ids):
        raise ValueError(f"{len(addresses)} addresses of workers, but {len(proc_ids)} names")
    return [service_proc_addr(*pair) for pair in zip(addresses, proc_ids, strict=True)]


def ranked_service_proc_id_from_env(*, rank_env: str = SERVICE_PROC_RANK_ENV) -> ProcId | None:
    """Return this worker's name from the list in the environment; ``None`` if there is none.

    ``rank_env`` is the variable with this worker's index in the list, from 0.
    """
    serialized, rank = os.environ.get(SERVICE_PROC_IDS_ENV), os.environ.get(rank_env)
    if serialized is None or rank is None:
        return None
    return deserialize_service_proc_ids(serialized)[int(rank)]
