"""An actor runtime for machine learning clusters, with the public API of Monarch.

Import what you use from its homes: ``monarch.actor`` (actors and meshes), ``monarch.job``
(allocations of machines), ``monarch.spmd`` (torch.distributed environments). Nothing here
imports torch.
"""

from monarch.config import configure, configured, get_global_config

__version__ = "0.1.0"

__all__ = ["__version__", "configure", "configured", "get_global_config"]
