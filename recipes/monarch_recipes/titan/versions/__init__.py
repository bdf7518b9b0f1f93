"""Everything that the recipe uses of TorchTitan: one adapter for each of its versions.

The rest of the recipe uses `interface` and `engine`, and imports TorchTitan nowhere. The installed
version decides which adapter is used. The files:

    interface   what an adapter does, and the parts that both share
    engine      a training: the part that 0.2 and 0.3 share
    titan_0_2   TorchTitan 0.2.2: its trainer, its models
    config_0_2  its config: `JobConfig`
    titan_0_3   TorchTitan 0.3: its trainer, its models
    config_0_3  its config: the result of a config function, changed by TOML
    overlay     makes config classes from an object of dataclasses, and sets values in the object
    sections    keys of the recipe's own; checks of sections
    older_torch lets TorchTitan 0.3 run on a torch before 2.14
    cpu         lets TorchTitan run without a GPU
"""

from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any, TypeAlias

from monarch.errors import JobError

from .interface import TitanVersion, VersionKeys

__all__ = ["TitanConfig", "TitanVersion", "VersionKeys", "module_for", "register_model", "titan"]


def module_for(version: str) -> str:
    """Return the name of the adapter module for a version of TorchTitan.

    Raises JobError if none fits.
    """
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
    """Register a model, so that configs can say `model.name = NAME`. For TorchTitan 0.2.

    A name may be registered again, when its module is reloaded. Raises JobError with TorchTitan
    0.3, which has config functions instead.
    """
    register = getattr(_adapter, "register_model", None)
    if register is None:
        raise JobError(
            "TorchTitan 0.3 has no registry of models: name your module and a function in it that "
            "returns a Trainer.Config, as module and config"
        )
    register(name, spec)
