"""`monarch run titan --plan`: builds the model of a config on ranks that do not exist.

TorchTitan's trainer is built in a process of its own, on torch's fake backend. Meshes and shards
are real, for any number of ranks, but tensors have no storage. So a model of 8 billion parameters
on 128 ranks is planned in seconds, on a laptop.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from monarch.config_file import ConfigError
from monarch.python_start import text_arguments

from .config import Degrees, TitanConfig, check_config
from .versions import titan

_ADAMS = {"Adam", "AdamW"}
_ANSWER = "PLAN "


@dataclass(frozen=True)
class Dimension:
    """A dimension of the mesh, and the ranks that rank 0 shares it with."""

    name: str
    ranks: tuple[int, ...]

    def text(self, procs_per_host: int) -> str:
        shown = ", ".join(map(str, self.ranks[:3])) + (", ..." if len(self.ranks) > 3 else "")
        if self.ranks[1] - self.ranks[0] == 1 and len(self.ranks) > 3:
            shown = f"{self.ranks[0]} to {self.ranks[-1]}"
        hosts = {rank // procs_per_host for rank in self.ranks}
        reach = "within a host" if len(hosts) == 1 else f"across {len(hosts)} hosts"
        return f"{len(self.ranks)} ranks, {reach}: rank 0 is with {shown}"


@dataclass(frozen=True)
class TitanPlan:
    """The plan of a run. Bytes are those of rank 0, whose shard is among the largest."""

    procs_per_host: int
    degrees: Degrees
    dimensions: tuple[Dimension, ...]
    model: str
    num_parameters: int  # of the whole model; of the first stage, in a pipeline
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int | None  # None for an optimizer of unknown state
    global_batch_size: int  # sequences
    num_micro_batches: int
    seq_len: int
    num_steps: int

    @property
    def tokens_per_step(self) -> int:
        """The number of tokens in a step, over all ranks."""
        return self.global_batch_size * self.seq_len

    def rows(self) -> dict[str, str]:
        """Return the plan as rows of a table, for a person."""
        stage = " in the first stage" if self.degrees.pp > 1 else ""
        state = "unknown" if self.optimizer_bytes is None else _size(self.optimizer_bytes)
        passes = "1 pass" if self.num_micro_batches == 1 else f"{self.num_micro_batches} passes"
        num_bytes = self.parameter_bytes + self.gradient_bytes + (self.optimizer_bytes or 0)
        return {
            "parallelism": str(self.degrees),
            **{
                dimension.name: dimension.text(self.procs_per_host) for dimension in self.dimensions
            },
            "model": self.model,
            "parameters": f"{self.num_parameters:,}{stage}",
            "memory of a rank": f"{_size(num_bytes)}: parameters {_size(self.parameter_bytes)}, "
            f"gradients {_size(self.gradient_bytes)}, optimizer {state}; activations come on top",
            "a step": f"{self.global_batch_size} x {self.seq_len} = {self.tokens_per_step:,} "
            f"tokens, in {passes}",
            "steps": str(self.num_steps),
        }


def _size(num_bytes: int) -> str:
    mib = num_bytes / 1024**2
    return f"{mib:.1f} MiB" if mib < 1024 else f"{mib / 1024:.2f} GiB"


def plan(config: TitanConfig, num_hosts: int, procs_per_host: int) -> dict[str, str]:
    """Return the plan of a run on these procs, as rows of a table for a person."""
    return build_plan(config, num_hosts, procs_per_host).rows()


def build_plan(config: TitanConfig, num_hosts: int, procs_per_host: int) -> TitanPlan:
    """Return the plan of a run on these procs. Raises ConfigError if TorchTitan cannot build it."""
    world_size = num_hosts * procs_per_host
    degrees = check_config(config, world_size)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        "CUDA_VISIBLE_DEVICES": "",
        "NGPU": str(world_size),
        "WORLD_SIZE": str(world_size),
        "RANK": "0",
        "LOCAL_RANK": "0",
    }
    done = subprocess.run(
        [sys.executable, *text_arguments(f"from {__name__} import main; main()")],
        input=pickle.dumps(config),
        capture_output=True,
        env=environment,
        check=False,
    )
    lines = done.stdout.decode().splitlines()
    answer = next((line for line in lines if line.startswith(_ANSWER)), None)
    if answer is None:
        raise ConfigError(f"TorchTitan cannot build this:\n{done.stderr.decode().strip()[-2000:]}")
    sizes = json.loads(answer.removeprefix(_ANSWER))
    if "error" in sizes:
        raise ConfigError(sizes["error"], key=sizes.get("key"))
    dimensions = [Dimension(name, tuple(ranks)) for name, ranks in sizes.pop("dimensions")]
    return TitanPlan(
        procs_per_host,
        degrees,
        tuple(dimensions),
        titan.model_text(config),
        seq_len=config.training.seq_len,
        num_steps=config.training.steps,
        **sizes,
    )


def _build(config: TitanConfig) -> Mapping[str, Any]:
    """Build rank 0's trainer, and return the mesh dimensions, bytes and batch size by name.

    Call it in a process that ends afterwards.
    """
    engine = titan.make_without_storage(config)
    parameters = [p for part in engine.model_parts for p in part.parameters()]
    num_bytes = sum(_local(p).numel() * p.element_size() for p in parameters)
    meshes = engine.parallel_dims.get_all_one_dimensional_meshes()
    degrees = Degrees.of(config, int(os.environ["WORLD_SIZE"]))
    batch = config.training.local_batch_size * degrees.data * engine.num_micro_batches
    return {
        # "batch" and "loss" are other views of the same ranks.
        "dimensions": [
            (name, mesh.mesh.tolist())
            for name, mesh in meshes.items()
            if name not in ("batch", "loss", "efsdp")
        ],
        "num_parameters": sum(p.numel() for p in parameters),
        "parameter_bytes": num_bytes,
        "gradient_bytes": num_bytes,
        "optimizer_bytes": (2 * num_bytes if titan.optimizer_names(config) <= _ADAMS else None),
        "global_batch_size": batch,
        "num_micro_batches": engine.num_micro_batches,
    }


def _local(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def main() -> None:
    """Read a config from stdin, build it, print the result, and end this process."""
    config: TitanConfig = pickle.loads(sys.stdin.buffer.read())
    sizes: Mapping[str, Any]
    try:
        sizes = _build(config)
    except ConfigError as error:
        sizes = {"error": str(error), "key": error.key}
    except (AssertionError, NotImplementedError, RuntimeError, ValueError) as error:
        sizes = {"error": f"TorchTitan cannot build this: {error}"}
    print(_ANSWER + json.dumps(sizes), flush=True)  # noqa: T201
    # A normal exit would try to shut down the fake process groups.
    os._exit(0)
