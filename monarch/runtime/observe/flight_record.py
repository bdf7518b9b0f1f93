"""The last collectives of this process, as torch's flight recorder has them (gloo and NCCL)."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Mapping, Sequence
from typing import Any

BUFFER_VARIABLE = "TORCH_FR_BUFFER_SIZE"
"""Torch records so many collectives; it reads this at the first one."""

_NUM_ENTRIES = 500
_LIBRARY = (f"{os.sep}site-packages{os.sep}", os.path.dirname(os.__file__) + os.sep, "<frozen")


def flight_record(*, places: bool = True) -> dict[str, Any]:
    """Return torch's recent collectives: ``rank`` in torch's world, and ``entries``, oldest first:
    ``group``, ``seq``, ``op``, ``sizes``, ``dtypes``, ``done``, ``created_ns`` since 1970,
    ``place``. Empty if this process is in no group. With ``places`` the first call takes a
    second or two, because torch reads the symbols of its libraries.
    """
    torch = sys.modules.get("torch")
    distributed = sys.modules.get("torch.distributed")
    if torch is None or distributed is None or not distributed.is_initialized():
        return {}
    c10d = torch._C._distributed_c10d
    dump = getattr(c10d, "_dump_fr_trace", None) or getattr(c10d, "_dump_nccl_trace", None)
    record = pickle.loads(dump(includeStackTraces=places)) if dump is not None else {}
    entries = [read_entry(entry) for entry in record.get("entries", [])[-_NUM_ENTRIES:]]
    return {"rank": distributed.get_rank(), "entries": entries}


def read_entry(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return one of torch's entries for a collective under our names."""
    group = entry.get("process_group") or (str(entry.get("pg_id", "")), "")
    state = entry.get("state")
    return {
        "group": str(group[0]),
        "group_name": str(group[-1]),
        "seq": int(entry.get("collective_seq_id") or 0),
        "is_p2p": bool(entry.get("is_p2p")),
        "op": str(entry.get("profiling_name", "")).rpartition(":")[2],
        "sizes": [list(size) for size in entry.get("input_sizes", ())],
        "dtypes": [str(dtype) for dtype in entry.get("input_dtypes", ())],
        # Gloo's never get beyond "scheduled".
        "done": bool(entry.get("retired")) or state == "completed",
        "created_ns": int(entry.get("time_created_ns") or 0),
        "place": _place(entry.get("frames", ())),
    }


def _place(frames: Sequence[Mapping[str, Any]]) -> str:
    """Return the innermost line of the user's own code as ``file:line``; "" if there is none."""
    for frame in frames:
        name = str(frame.get("filename", ""))
        if name and not any(part in name for part in _LIBRARY):
            return f"{name}:{frame.get('line', 0)}"
    return ""
