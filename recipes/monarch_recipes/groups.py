"""Makes the process groups of a rank again after they were aborted, and replaces the old objects.

torch can abort a group and make another one, but other objects still refer to the old one: device
meshes by its name; FSDP, pipeline stages and checkpointers by the object. Here each group is made
again with its old ranks, backend and name, in the old order, and replaces the old one wherever
Python objects hold it. Compiled code and functional collectives refer to groups by name, so they
need no change.

    groups = RankGroups()  # before an abort
    ...
    meet_at(*store)  # after an abort, on all ranks together
    holders = groups.make_anew()

References from C++ objects cannot be replaced: a `DistributedDataParallel` must be wrapped again.
"""

from __future__ import annotations

import contextlib
import gc
import types
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

_USER_TAG = "user:"


@dataclass
class _GroupSettings:
    """The settings with which a process group is made again."""

    group: Any
    name: str
    ranks: tuple[int, ...]
    backend: str
    description: str
    tag: str
    timeout: timedelta | None
    options: Any  # of NCCL


class RankGroups:
    """All process groups of which this process is a member now, the default one first."""

    def __init__(self) -> None:
        world = c10d._world
        default = c10d._get_default_group()
        # All ranks made their groups in the same order: otherwise they would have deadlocked.
        in_order = sorted(world.pg_names, key=lambda group: group is not default)
        self._groups = [_settings_of(group) for group in in_order]
        self._num_named = world.group_count

    def make_anew(self) -> list[str]:
        """Make all groups again and replace the old ones in the objects that hold them.

        All ranks must call it together, after ``meet_at``. Returns a text for each holder of an old
        group that could not be changed.
        """
        leave_groups()
        world = c10d._world
        first, *others = self._groups
        world.group_count = 0
        dist.init_process_group(
            first.backend,
            timeout=first.timeout,
            pg_options=first.options,
            group_name=first.name,
        )
        default = c10d._get_default_group()
        _, store = world.pg_map[default]
        new_groups = [default]
        for old in others:
            group, _ = c10d._new_process_group_helper(
                len(old.ranks),
                old.ranks.index(default.rank()),
                list(old.ranks),
                old.backend,
                store,
                old.name,
                backend_options=old.options,
                timeout=old.timeout or c10d._get_default_timeout(old.backend),
                pg_tag=old.tag,
                group_desc=old.description,
            )
            world.pg_group_ranks[group] = {rank: index for index, rank in enumerate(old.ranks)}
            new_groups.append(group)
        # Groups that are made later get the names that they would have had without the abort.
        world.group_count = self._num_named
        return put_in_place([old.group for old in self._groups], new_groups)


def _settings_of(group: Any) -> _GroupSettings:
    world = c10d._world
    backend, _ = world.pg_map[group]
    engines = [group._get_backend(device) for device in group._device_types]
    settings = [engine.options for engine in engines if getattr(engine, "options", None)]
    tag = world.pg_to_tag.get(group, "")
    return _GroupSettings(
        group=group,
        name=world.pg_names[group],
        ranks=tuple(dist.get_process_group_ranks(group)),
        backend=str(backend),
        description=group.group_desc,
        tag=tag.removeprefix(_USER_TAG) if tag.startswith(_USER_TAG) else "",
        timeout=settings[0]._timeout if settings else None,
        options=_options_like(engines),
    )


def _options_like(engines: Sequence[Any]) -> Any:
    """Return new NCCL options with the settings of a group's options; None for another backend.

    The old options cannot be used again: they refer to the parent group, which was aborted too.
    """
    kind = getattr(c10d, "ProcessGroupNCCL", None)
    for engine in engines:
        if kind is not None and isinstance(engine, kind):
            options = kind.Options()
            options.is_high_priority_stream = engine.options.is_high_priority_stream
            options.config = engine.options.config
            options._timeout = engine.options._timeout
            return options
    return None


def leave_groups() -> None:
    """Remove this process from all process groups, even from groups that cannot be shut down."""
    with contextlib.suppress(Exception):
        dist.destroy_process_group()
    world = c10d._world
    if world.pg_map:  # One of them could not be shut down.
        c10d._update_default_pg(None)
        for registry in (
            world.pg_map,
            world.pg_names,
            world.pg_group_ranks,
            world.pg_backend_config,
            world.pg_to_tag,
            world.tags_to_pg,
            world.pg_coalesce_state,
        ):
            registry.clear()
        c10d._unregister_all_process_groups()
    world.group_count = 0


def put_in_place(old: list[Any], new: list[Any]) -> list[str]:
    """Replace each object of ``old`` by the object at its index in ``new``, wherever it is held.

    Returns a text for each holder that could not be changed.
    """
    successors = dict(zip(map(id, old), new, strict=True))
    return [
        f"a {type(holder).__name__}"
        for holder in gc.get_referrers(*old)
        if holder is not old and not _changed(holder, successors)
    ]


def _changed(holder: Any, successors: dict[int, Any]) -> bool:
    """Replace the old groups in a holder by their successors; return whether that succeeded."""
    if isinstance(holder, types.FrameType):
        return True  # A local variable, of a call that ends soon.
    if isinstance(holder, dict):
        return _changed_entries(holder, successors)
    if isinstance(holder, list):
        holder[:] = [successors.get(id(entry), entry) for entry in holder]
        return True
    if isinstance(holder, types.CellType):
        holder.cell_contents = successors[id(holder.cell_contents)]
        return True
    is_changed = False
    attributes = getattr(holder, "__dict__", None)
    if isinstance(attributes, dict):
        is_changed = _changed_entries(attributes, successors)
    for kind in type(holder).__mro__:
        for slot in vars(kind).values():
            if isinstance(slot, types.MemberDescriptorType):
                with contextlib.suppress(AttributeError):
                    value = slot.__get__(holder)
                    if id(value) in successors:
                        slot.__set__(holder, successors[id(value)])
                        is_changed = True
    return is_changed


def _changed_entries(entries: dict[Any, Any], successors: dict[int, Any]) -> bool:
    if any(id(key) in successors for key in entries):
        items = list(entries.items())
        entries.clear()
        entries.update((successors.get(id(key), key), value) for key, value in items)
    for key, value in entries.items():
        if id(value) in successors:
            entries[key] = successors[id(value)]
    return True
