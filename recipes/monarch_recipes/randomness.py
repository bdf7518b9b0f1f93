"""Random numbers that depend on the place in a training, and on nothing else."""

from __future__ import annotations

import functools
import hashlib
import random
import sys

import torch


def draw_from(*place: int) -> None:
    """From now on torch, `random` and, where it is used, numpy draw the numbers that belong to this
    place: the run's seed, the replica, the step. So no state of theirs need be saved."""
    digest = hashlib.blake2b(repr(place).encode(), digest_size=8).digest()
    seed = int.from_bytes(digest, "little") >> 1
    if _has_accelerator():
        torch.manual_seed(seed)
    else:  # Seeding for a possible GPU takes torch longer than a small network's forward pass.
        torch.default_generator.manual_seed(seed)
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % 2**32)


@functools.cache
def _has_accelerator() -> bool:
    return bool(torch.accelerator.is_available())
