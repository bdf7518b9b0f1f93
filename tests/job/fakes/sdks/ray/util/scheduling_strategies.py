from __future__ import annotations

from typing import Any, NamedTuple


class PlacementGroupSchedulingStrategy(NamedTuple):
    placement_group: Any
    placement_group_bundle_index: int
