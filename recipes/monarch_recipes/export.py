"""The weights of a checkpoint as a plain file that other programs read."""

from __future__ import annotations

from pathlib import Path

from monarch.errors import JobError
from monarch_recipes.best import BEST
from monarch_recipes.checkpoint import checkpoint_paths, load_checkpoint


def export(checkpoint: Path, file: Path) -> str:
    """Write the model of a checkpoint to ``file`` as safetensors: tensors by name.

    ``checkpoint`` is a checkpoint file, or a folder of them: then its best checkpoint is used if
    one was kept, else its newest. Returns one line of text: how many tensors, of which step. Raises
    JobError if safetensors is not installed or the folder has no checkpoint, and CheckpointError
    for a file that cannot be read.
    """
    try:
        from safetensors.torch import save_file
    except ModuleNotFoundError:
        raise JobError("safetensors is not installed: pip install 'monarch-loop[train]'") from None
    if checkpoint.is_dir():
        paths = checkpoint_paths(checkpoint / BEST) or checkpoint_paths(checkpoint)
        if not paths:
            raise JobError(f"there is no checkpoint in {checkpoint}")
        checkpoint = paths[-1]
    loaded = load_checkpoint(checkpoint)
    # Tensors that share memory, as tied weights do, are written once for each of their names.
    weights = {name: each.clone().contiguous() for name, each in loaded.state["model"].items()}
    save_file(weights, str(file), metadata={"format": "pt", "step": str(loaded.step)})
    return f"{len(weights)} tensors of step {loaded.step} ({checkpoint}) to {file}"
