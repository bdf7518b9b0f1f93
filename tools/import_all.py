"""Imports each module of the product, and fails if one cannot be imported by this Python.

A module that needs an optional package which is not installed is skipped, and counted.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections import Counter
from collections.abc import Iterator

PACKAGES = ("monarch", "monarch_sync", "monarch_reload", "monarch_recipes")
OPTIONAL = frozenset({
    "anywidget", "debugpy", "duckdb", "ibverbs", "ipykernel", "IPython", "kubernetes",
    "lightning_sdk", "numpy", "opentelemetry", "prometheus_client", "prompt_toolkit", "pyverbs",
    "ray", "safetensors", "sklearn", "skypilot", "starlette", "tensorboard", "textual", "torch",
    "torchft", "torchtitan", "torchx", "traitlets", "uvicorn", "wandb",
})  # fmt: skip


def modules() -> Iterator[str]:
    for top in PACKAGES:
        yield top
        for module in pkgutil.walk_packages(
            importlib.import_module(top).__path__, f"{top}.", onerror=lambda name: None
        ):
            if not module.name.endswith("__main__"):
                yield module.name


def main() -> int:
    imported, wanted, failed = 0, Counter[str](), 0
    for name in modules():
        try:
            importlib.import_module(name)
        except Exception as error:
            package = (getattr(error, "name", None) or "").partition(".")[0]
            # A name that another version of the package has is an ImportError, too.
            if isinstance(error, ImportError) and package in OPTIONAL:
                wanted[package] += 1
                continue
            failed += 1
            sys.stderr.write(f"{name}: {type(error).__name__}: {error}\n")
        else:
            imported += 1
    left_out = "".join(f", {count} want {name}" for name, count in wanted.most_common())
    version = sys.version.split()[0]
    sys.stdout.write(f"Python {version}: {imported} modules imported, {failed} failed{left_out}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
