"""Imports of Monarch's addresses that are no files here, such as ``monarch._src.actor.actor_mesh``.

The finder is first in the list: otherwise Python would take a folder of an older version, which has
only bytecode left, for a package. Imports that are not below the few names here cost one look-up. A
module of the finder contains no names: each name is looked up in its own module when it is used, so
that values which a program assigns there later are seen here too.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType

_PREFIX = "monarch."

# All addresses are below these packages.
HEADS = frozenset(
    (
        "_rust_bindings",
        "_src",
        "_testing",
        "actor_mesh",
        "allocator",
        "builtins",
        "cached_remote_function",
        "common",
        "experimental",
        "fetch",
        "gather_mount",
        "gradient",
        "gradient_generator",
        "mesh_controller",
        "opaque_module",
        "opaque_object",
        "proc_mesh",
        "python_local_mesh",
        "random",
        "remote_class",
        "remotemount",
        "tools",
        "utils",
        "worker",
    )
)
SINGLE = frozenset(
    (
        "monarch.actor.alloc",
        "monarch.actor.concurrent",
        "monarch.job.kubernetes",
        "monarch.job.process",
        "monarch.job.spmd",
    )
)


class _AddressFinder:
    """Finds and loads modules of Monarch that are no files here."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(_PREFIX):
            return None
        if fullname.split(".", 2)[1] not in HEADS and fullname not in SINGLE:
            return None
        # Imported when used: programs that are written for us never need it.
        from monarch.compat.addresses import ADDRESSES, is_package

        if fullname not in ADDRESSES:
            return None
        return ModuleSpec(fullname, self, is_package=is_package(fullname))  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        from monarch.compat.addresses import ADDRESSES

        address = ADDRESSES[module.__name__]
        if address.same_as:
            sys.modules[module.__name__] = import_module(address.same_as)
            return
        if address.instead:
            text = f"{module.__name__} is deprecated; import from {address.instead}"
            warnings.warn(text, DeprecationWarning, _importer_level())
        names = address.names()

        def look_up(name: str) -> object:
            if name not in names:
                # Importing one of Monarch's packages also imports its modules.
                if (below := f"{module.__name__}.{name}") in ADDRESSES:
                    return import_module(below)
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
            home, attribute = names[name]
            return getattr(import_module(home), attribute)

        module.__doc__ = "Names at the address that Monarch has them at; see monarch.compat."
        vars(module).update(
            __all__=[name for name in names if not name.startswith("_")],
            __getattr__=look_up,
            __dir__=lambda: sorted({*vars(module), *names}),
        )


def _importer_level() -> int:
    """Return how many frames up the import statement is, past the frames of the import system."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and (
        frame.f_code.co_filename == __file__ or "importlib" in frame.f_code.co_filename
    ):
        level, frame = level + 1, frame.f_back
    return level


def install() -> None:
    """Add the finder to Python's imports, unless it is there already."""
    if not any(isinstance(finder, _AddressFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AddressFinder())
