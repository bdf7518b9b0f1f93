"""Deprecated: the names of ``monarch.actor`` at an older address."""

import warnings

from monarch.actor import *  # noqa: F403
from monarch.actor import __all__  # noqa: F401

warnings.warn("monarch.proc_mesh is deprecated; import from monarch.actor", DeprecationWarning, 2)
