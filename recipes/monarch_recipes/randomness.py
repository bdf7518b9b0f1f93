"""Seeds the random generators from the place in a training, such as the run's seed and the step."""

from __future__ import annotations

import functools
import hashlib
import random
import sys
from typing import Any

import torch


def draw_from(*place: int) -> None:
    """Seed the random generators of torch, `random` and, if it is imported, numpy from ``place``.

    ``place`` is for example (seed, replica, rank, step). A step that is repeated draws the same
    numbers, so that no state of the generators needs to be saved.
    """
    seed = _seed_of(place)
    if _has_accelerator():
        torch.manual_seed(seed)
    else:  # Seeding for a possible GPU takes torch longer than a small network's forward pass.
        torch.default_generator.manual_seed(seed)
    _seed_others(seed)


def _seed_of(place: tuple[int, ...]) -> int:
    digest = hashlib.blake2b(repr(place).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def _seed_others(seed: int) -> None:
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % 2**32)


@functools.cache
def _has_accelerator() -> bool:
    return bool(torch.accelerator.is_available())


class OwnDraws:
    """A block with its own random state: of torch on the CPU, `random` and, if imported, numpy.
    After the block, the generators continue as if it had drawn nothing.
    """

    def __init__(self, *place: int) -> None:
        self._outside, seed = _states(), _seed_of(place)
        torch.default_generator.manual_seed(seed)
        _seed_others(seed)
        self._within = _states()
        _set_states(self._outside)

    def __enter__(self) -> None:
        self._outside = _states()
        _set_states(self._within)

    def __exit__(self, *error: object) -> None:
        self._within = _states()
        _set_states(self._outside)

    def state_dict(self) -> dict[str, Any]:
        """Return the random state inside the block, as values that a checkpoint can hold."""
        return dict(self._within)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._within = dict(state)


def _states() -> dict[str, Any]:
    states: dict[str, Any] = {"torch": torch.default_generator.get_state()}
    states["random"] = random.getstate()
    if (numpy := sys.modules.get("numpy")) is not None:
        name, keys, *rest = numpy.random.get_state()
        states["numpy"] = (name, torch.from_numpy(keys.astype("int64")), *rest)
    return states


def _set_states(states: dict[str, Any]) -> None:
    torch.default_generator.set_state(states["torch"])
    random.setstate(states["random"])
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in states:
        name, keys, *rest = states["numpy"]
        numpy.random.set_state((name, keys.numpy().astype("uint32"), *rest))
