"""Finds the installed Python package for libibverbs."""

from __future__ import annotations

import functools
import importlib

from monarch.rdma.ways.verbs.devices import usable
from monarch.rdma.ways.verbs.library import VerbsLibrary

_LIBRARIES = ("pyverbs_library", "ibverbs_library")


@functools.cache
def find_library() -> VerbsLibrary | None:
    """Return the first installed binding that sees a usable device; ``None`` if there is none."""
    for module in _LIBRARIES:
        try:
            binding = importlib.import_module(f"monarch.rdma.ways.verbs.{module}")
        except ImportError:
            # This includes a pyverbs that was built for another libibverbs.
            continue
        library: VerbsLibrary = binding.LIBRARY
        if usable(library.list_devices()):
            return library
    return None
