"""All that the recipe uses of TorchTitan: one adapter for each of its versions.

The rest of the recipe is written against `interface`, and imports TorchTitan nowhere. Which adapter
is used, is chosen by what is installed. What to open:

    interface   what an adapter offers
    engine      a trainer, by what 0.2 and 0.3 have in common
    titan_0_2   TorchTitan 0.2.2: its trainer, its models
    config_0_2  its config: `JobConfig`
    titan_0_3   TorchTitan 0.3: its trainer, its models
    config_0_3  its config: what a config function returns, with TOML laid over it
    overlay     classes of keys for an object of dataclasses, and values laid over it
    flags       what TorchTitan makes of its own flags
    sections    the keys that are not TorchTitan's; checks of sections
    older_torch TorchTitan 0.3 on a torch before 2.14
    cpu         how TorchTitan runs without a GPU
"""

from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any, TypeAlias

from monarch.errors import JobError

from .interface import TitanVersion, VersionKeys

__all__ = ["TitanConfig", "TitanVersion", "VersionKeys", "module_for", "register_model", "titan"]


def module_for(version: str) -> str:
    """The module of the adapter for a TorchTitan. Raises JobError where there is none."""
    parts = version.split(".")
    if parts[:2] not in (["0", "2"], ["0", "3"]):
        raise JobError(
            f"torchtitan {version} is installed, and the titan recipe knows 0.2 and 0.3: "
            "pip install torchtitan==0.3.0, or torchtitan==0.2.2"
        )
    return f"titan_{parts[0]}_{parts[1]}"


_adapter = import_module(f".{module_for(metadata.version('torchtitan'))}", __name__)
titan: TitanVersion = _adapter.ADAPTER
if TYPE_CHECKING:
    TitanConfig: TypeAlias = Any  # Each version has its own, made of TorchTitan's classes.
else:
    TitanConfig = titan.config_class


def register_model(name: str, spec: Any) -> None:
    """Let configs say `model.name = NAME`: of TorchTitan 0.2, whose models are in a registry.

    Again is fine: a module that changed is run again. Raises JobError for 0.3, which has config
    functions instead.
    """
    register = getattr(_adapter, "register_model", None)
    if register is None:
        raise JobError(
            "TorchTitan 0.3 has no registry of models: name your module and a function in it that "
            "returns a Trainer.Config, as module and config"
        )
    register(name, spec)
