"""The modules of installed packages that a proc imports soon after its start: its host then imports
them ahead for later procs."""

from __future__ import annotations

import itertools
import os
import site
import sys
from collections.abc import Callable, Iterable
from types import ModuleType

from monarch.net.loop import Loop

# Seconds after the birth at which it looks.
_LOOKS = (0.3, 0.6, 1.0, 1.5, 2.2, 3.2, 5.0, 8.0, 13.0, 20.0, 30.0)
_MAX_NAMES = 2000
_OURS = ("monarch", "monarch_sync", "monarch_reload", "monarch_recipes")
# Libraries read these when they are loaded, so a template needs the proc's values.
_READ_AT_IMPORT = (
    "BLIS_", "CUBLAS_", "CUDA_", "GOMP_", "GOTO_", "HF_", "HIP_", "KMP_", "LD_", "MKL_", "NCCL_",
    "NUMBA_", "NUMEXPR_", "OMP_", "OPENBLAS_", "PYTHON", "PYTORCH_", "ROCM_", "TF_", "TORCH",
    "TRITON_", "VECLIB_", "XLA_",
)  # fmt: skip
# Libraries read the first one only when they open a GPU, which spoils a template. Torch and sklearn
# set the others themselves, when they are imported or first used.
_MAY_CHANGE = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_MODULE_LOADING", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK", "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
)  # fmt: skip


def is_read_at_import(variable: str) -> bool:
    """Return whether a library may read an environment variable when it is imported, and only
    then."""
    return variable.startswith(_READ_AT_IMPORT)


def in_installed(path: str | None) -> bool:
    """Return whether a module's file belongs to an installed package, and is not the user's
    code."""
    return path is not None and path.startswith(_INSTALLED)


_INSTALLED = tuple(folder + os.sep for folder in site.getsitepackages())


class SeenImports:
    """Watches which modules a proc imports, so that the template of later procs can import them in
    advance.

    ``tell`` is called with the names of the modules once two looks have found the same names. On
    the loop.
    """

    def __init__(self, tell: Callable[[tuple[str, ...]], object]) -> None:
        self._tell = tell
        #: The modules that were imported before the proc's own code ran.
        self._inherited = set(sys.modules)
        #: The variables that libraries read at import, as they were then.
        self._environment = _read_at_import()
        #: The names at the last look, and those that were reported last.
        self._last: tuple[str, ...] = ()
        self._told: tuple[str, ...] = ()

    def look_on(self, loop: Loop) -> None:
        """Look at the imports from time to time, for a while."""
        for seconds in _LOOKS:
            loop.call_later(seconds, self.look)

    def look(self, *, is_last: bool = False) -> None:
        """Report the imported modules if they are the same as at the last look.

        ``is_last``: report them in any case, because there is no further look.
        """
        names = tuple(self._names())
        is_still, self._last = names == self._last, names
        if not (names and (is_still or is_last)) or names == self._told:
            return
        if _read_at_import() == self._environment:
            self._told = names
            self._tell(names)

    def _names(self) -> Iterable[str]:
        num_names = 0
        for name in list(sys.modules):
            top = name.partition(".")[0]
            if name in self._inherited or top in _OURS:
                continue
            module = sys.modules.get(name)
            if not isinstance(module, ModuleType):
                continue
            # Without attribute access, which makes a lazy module import itself.
            spec = object.__getattribute__(module, "__dict__").get("__spec__")
            if spec is None or spec.name != name or getattr(spec, "_initializing", False):
                continue
            if in_installed(spec.origin) and num_names < _MAX_NAMES:
                num_names += 1
                yield name


def _read_at_import() -> dict[str, str]:
    """Return the environment variables that libraries read when they are imported, by name.

    If one of them has changed, a template's import may differ from the proc's own.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if is_read_at_import(name) and name not in _MAY_CHANGE
    }


def drop_hidden(learned: Iterable[str]) -> None:
    """Remove from ``sys.modules`` the packages that the template has imported, if a folder of the
    user's on this proc's path has another package or module of that name.

    Such a folder comes earlier on the path, so the proc must import from it.
    """
    folders = list(itertools.takewhile(lambda path: not in_installed(path + os.sep), sys.path))
    for top in {name.partition(".")[0] for name in learned}:
        if any(
            os.path.exists(os.path.join(folder, f"{top}{ending}"))
            for folder in folders
            for ending in ("", ".py")
        ):
            for name in list(sys.modules):
                if name == top or name.startswith(f"{top}."):
                    del sys.modules[name]
