"""The small Llama, on data that gets into trouble on rank 1, as the file `trouble` says."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import tiny_llama
from torchtitan.hf_datasets import DatasetConfig
from torchtitan.hf_datasets.text_datasets import DATASETS


def text_of(document: dict[str, Any]) -> str:
    mark = Path("trouble")
    if os.environ["RANK"] == "1" and mark.exists():
        kind = mark.read_text()
        if kind == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "raise":
            raise OSError("the shard is gone")
        mark.unlink()
        hang_here()
    text: str = tiny_llama.text_of(document)
    return text


def hang_here() -> None:
    while True:
        time.sleep(1)


def test() -> Any:
    """With TorchTitan 0.3, this module is the one that is named."""
    return tiny_llama.test()


DATASETS["troubled"] = DatasetConfig(
    path="", loader=tiny_llama.load_texts, sample_processor=text_of
)
