"""What a launch is configured with: folders, and the environment they are developed in."""

from monarch.tools.config.environment import CondaEnvironment, Environment
from monarch.tools.config.launch import NOT_SET, Config
from monarch.tools.config.workspace import ACTIVE_CONDA_ENV, Workspace

__all__ = [
    "ACTIVE_CONDA_ENV",
    "NOT_SET",
    "CondaEnvironment",
    "Config",
    "Environment",
    "Workspace",
]
