"""`monarch recipe prepare titan-tiny`: makes everything that a small, real training needs.

The text is Python's own language reference, in `pydoc_data.topics`: half a megabyte of English
prose. A tokenizer is trained on it. Nothing is downloaded.
"""

from __future__ import annotations

import importlib
import json
import random
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from monarch.whole_file import OF_PEOPLE, write_whole

from .versions import titan

_BEGIN, _END = "<|begin_of_text|>", "<|end_of_text|>"
_VOCABULARY = 1024
_DOCUMENT_CHARACTERS = 1500
_HELD_OUT = 20  # one document in so many is for validation


def prepare(folder: Path) -> Path:
    """Write data, tokenizer, model code and configs into `folder`; return the path of the config.

    The folder is a workspace to run in. Existing configs and code are kept.
    """
    folder = folder.resolve()
    documents = read_documents()
    random.Random(0).shuffle(documents)
    num_held_out = len(documents) // _HELD_OUT
    held_out, train = documents[:num_held_out], documents[num_held_out:]
    for name, part in (("train", train), ("valid", held_out)):
        path = folder / "data" / name / "documents.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in part))
    _train_tokenizer(train, folder / "tokenizer")

    copy_edited(folder)
    return folder / "titan.toml"


def copy_edited(folder: Path) -> None:
    """Write the files that a person may edit, except those that exist."""
    configs = resources.files("monarch_recipes") / "configs"
    for source, target in titan.prepared_files().items():
        if not (folder / target).exists():
            write_whole(
                folder / target, (configs / source).read_text(encoding="utf-8"), mode=OF_PEOPLE
            )


def read_documents() -> list[str]:
    """Return the language reference in pieces of about a page, each made of whole paragraphs."""
    topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    documents: list[str] = []
    # Some texts have several names; each is kept once, so that no held-out text is trained on.
    for topic in sorted({*topics.values()}):
        document = ""
        for paragraph in topic.split("\n\n"):
            document += paragraph + "\n\n"
            if len(document) > _DOCUMENT_CHARACTERS:
                documents.append(document)
                document = ""
        if document.strip():
            documents.append(document)
    return list(dict.fromkeys(documents))


def _train_tokenizer(documents: Sequence[str], folder: Path) -> None:
    """Train a byte-level BPE tokenizer, and write it in the format of Hugging Face."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        special_tokens=[_BEGIN, _END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": _BEGIN, "eos_token": _END, "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
