"""Which Python package for libibverbs is installed here."""

from __future__ import annotations

import functools
import importlib

from monarch.rdma.ways.verbs.devices import usable
from monarch.rdma.ways.verbs.library import VerbsLibrary

_LIBRARIES = ("pyverbs_library", "ibverbs_library")


@functools.cache
def find_library() -> VerbsLibrary | None:
    """The first binding that is installed and sees a device."""
    for module in _LIBRARIES:
        try:
            binding = importlib.import_module(f"monarch.rdma.ways.verbs.{module}")
        except ImportError:
            # Of pyverbs, also one that is built for another libibverbs.
            continue
        library: VerbsLibrary = binding.LIBRARY
        if usable(library.list_devices()):
            return library
    return None
