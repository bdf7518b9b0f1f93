"""Finds the training code of an existing project for `monarch init`, and says what to do with it.

It reads files, and imports or runs nothing of them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from monarch.runs.recipe.script_source import is_plain

Kind = Literal["lightning", "hf", "ray", "torchrun", "script", "recipe"]

_MOST_FILES = 500
_MOST_BYTES = 1_000_000
_CONFIGS = ("configs", "config", "conf")
# What trainings write need not go along to the hosts: folders that only libraries name so, others
# that may be a person's own, and weights, by suffix.
LOGS = ("lightning_logs", "wandb", "mlruns", "tb_logs")
OUTPUTS = (*LOGS, "outputs", "checkpoints", "logs")
WEIGHTS = (".pt", ".pth", ".ckpt", ".safetensors", ".distcp")

_LINES: dict[Kind, str] = {
    "lightning": "`monarch run {name} --procs {procs}` runs it as it is: its Trainer finds "
    "torchrun's environment (docs/from_lightning.md)",
    "hf": "`monarch run {name} --procs {procs}` runs it as it is, as torchrun does "
    "(docs/from_hf_trainer.md)",
    "ray": "its training function runs without Ray: `monarch run` a script that calls it "
    "(docs/from_ray_train.md)",
    "torchrun": "`monarch run {name} --procs {procs}` runs it as it is; its flags go behind `--` "
    "(docs/from_torchrun.md)",
    "script": "`monarch run {name}` runs it, one copy a proc, each with a RANK of its own "
    "(docs/from_torchrun.md)",
    "recipe": "`monarch run {name}`",
}
_NAMES: dict[Kind, str] = {
    "lightning": "a Lightning Trainer",
    "hf": "a Trainer of Hugging Face",
    "ray": "Ray Train",
    "torchrun": "a script for torchrun",
    "script": "a training script",
    "recipe": "a recipe",
}


@dataclass(frozen=True)
class FoundScript:
    """A Python file that trains; ``name`` is its path from the project."""

    name: str
    kind: Kind

    def lines(self, procs: int = 2) -> str:
        """Return what kind of script it is, and how to run it with ``procs`` processes."""
        what_to_do = _LINES[self.kind].format(name=self.name, procs=procs)
        return f"{self.name}: {_NAMES[self.kind]}. {what_to_do}"


@dataclass(frozen=True)
class FoundCode:
    """The code of a project: whether it has any, its scripts, its folders of configs, and the
    folders into which trainings write."""

    has_code: bool = False
    scripts: tuple[FoundScript, ...] = ()
    configs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    def lines(self) -> Iterator[str]:
        """Yield what to do with each script and folder, in a line or two."""
        yield from (script.lines() for script in self.scripts)
        for folder in self.configs:
            first = self.scripts[0].name if self.scripts else "train.py"
            yield (
                f"{folder}/: goes along to the hosts, and stays your script's: "
                f"`monarch run {first} -- --config {folder}/...`"
            )


def look_at(folder: Path) -> FoundCode:
    """Return what a project has, from its files at the top and one folder below."""
    paths = [*sorted(folder.glob("*.py")), *sorted(folder.glob("*/*.py"))][:_MOST_FILES]
    scripts = []
    for path in paths:
        kind = _kind_of_file(path)
        # Below, only what surely starts a training: packages are full of modules.
        if kind is not None and (path.parent == folder or kind != "script"):
            scripts.append(FoundScript(path.relative_to(folder).as_posix(), kind))
    # The first is what `monarch init` says to run.
    scripts.sort(key=lambda script: (script.kind == "script", "train" not in script.name))
    return FoundCode(
        has_code=bool(paths),
        scripts=tuple(scripts),
        configs=tuple(name for name in _CONFIGS if (folder / name).is_dir()),
        outputs=tuple(name for name in OUTPUTS if (folder / name).is_dir()),
    )


def _kind_of_file(path: Path) -> Kind | None:
    try:
        if path.stat().st_size > _MOST_BYTES:
            return None
        return kind_of(ast.parse(path.read_bytes()))
    except (OSError, SyntaxError, ValueError):
        return None


def kind_of(tree: ast.Module) -> Kind | None:
    """Return what kind of training a Python file starts; ``None`` if it starts none."""
    modules, called = _imported(tree), _called(tree)
    if _is_recipe(tree):
        return "recipe"
    if not is_plain(tree):
        return None
    tops = {name.partition(".")[0] for name in modules}
    if any(name.startswith("ray.train") for name in modules) or "TorchTrainer" in called:
        return "ray"
    if tops & {"lightning", "pytorch_lightning"} and {"Trainer", "LightningCLI"} & called:
        return "lightning"
    is_hf = bool(tops & {"transformers", "trl"})
    if is_hf and any(name.endswith("Trainer") for name in called):
        return "hf"
    if "torch" in tops:
        is_distributed = any(name.startswith("torch.distributed") for name in modules)
        names = {"init_process_group", "DistributedDataParallel", "DDP", "fully_shard", "FSDP"}
        if is_distributed or names & called:
            return "torchrun"
        trains = {"backward", "zero_grad"} & called
        return "script" if trains or "parse_args" in called else None
    return None


def _is_recipe(tree: ast.Module) -> bool:
    return any(
        isinstance(statement, ast.FunctionDef)
        and statement.name == "run"
        and [argument.arg for argument in statement.args.args][:1] == ["config"]
        and len(statement.args.args) >= 3
        for statement in tree.body
    )


def _imported(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def _called(tree: ast.Module) -> set[str]:
    """Return the last part of the name of each called function."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute):
                names.add(node.func.attr)
            elif isinstance(node.func, ast.Name):
                names.add(node.func.id)
    return names
