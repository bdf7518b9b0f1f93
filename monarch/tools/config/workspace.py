"""Local folders and where each lands, at the address that programs for Monarch import."""

from monarch.tools.config.environment import CondaEnvironment
from monarch_sync import Workspace

__all__ = ["ACTIVE_CONDA_ENV", "Workspace"]

ACTIVE_CONDA_ENV = CondaEnvironment()
