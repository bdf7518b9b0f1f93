"""Adds pages to the site of `make docs`: the documents of the root folder, and the Python API.

It is a hook of mkdocs, which calls `on_files` and `on_page_markdown`.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
_PAGES = {
    "readme.md": "README.md",
    "architecture.md": "ARCHITECTURE.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
}
# A name that several modules offer is on the page of the first one here.
_API = {
    "monarch.errors": "What is raised.",
    "monarch.mesh": "Extents, points, slices, value meshes.",
    "monarch.actor": "Actors, endpoints, and the meshes that they live in.",
    "monarch.job": "Allocations of machines.",
    "monarch.spmd": "torch.distributed on a mesh.",
    "monarch.rdma": "Memory that other processes read and write.",
    "monarch.runs": "What a recipe, or a training loop of your own, needs of a run.",
    "monarch.testing": "Hosts and procs without processes, for tests.",
    "monarch_sync": "Folders kept equal on many machines.",
    "monarch_reload": "Changed modules reloaded in a running process.",
}

# Names in tables are not broken within a word.
_STYLE = ".md-typeset table:not([class]) td:first-child code { word-break: normal; }\n"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Return the site's files, with the pages that are not in docs/."""
    for page, document in _PAGES.items():
        files.append(File.generated(config, page, content=_moved((ROOT / document).read_text())))
    rows = [f"| [`{name}`]({name}.md) | {summary} |" for name, summary in _API.items()]
    files.append(File.generated(config, "site.css", content=_STYLE))
    index = ["# Python API", "", "| module | what is in it |", "| --- | --- |", *rows]
    files.append(File.generated(config, "api/index.md", content="\n".join(index)))
    documented: set[str] = set()
    for name, summary in _API.items():
        page = _api_page(name, summary, documented)
        files.append(File.generated(config, f"api/{name}.md", content=page))
    return files


def _moved(text: str) -> str:
    """Return a document of the repository's root with its links changed to links from docs/."""
    text = re.sub(r"\]\(docs/", "](", text)
    for page, document in _PAGES.items():
        text = text.replace(f"]({document}", f"]({page}")
    return text.replace("[LICENSE](LICENSE)", "LICENSE")


def _api_page(name: str, summary: str, documented: set[str]) -> str:
    """Return a page with the public names of a module that no other page has documented."""
    module = importlib.import_module(name)
    parts = [f"# {name}", summary]
    for public in getattr(module, "__all__", None) or _defined_in(module):
        value = getattr(module, public)
        home = getattr(value, "__module__", None)
        if not callable(value) or not isinstance(home, str):
            continue
        where = f"{home}.{getattr(value, '__qualname__', public)}"
        if where not in documented and home.startswith(("monarch.", "monarch_")):
            documented.add(where)
            parts.append(f"::: {where}")
    return "\n\n".join(parts) + "\n"


def _defined_in(module: ModuleType) -> list[str]:
    of_its_own = [name for name, value in vars(module).items() if _is_made_in(value, module)]
    return [name for name in of_its_own if not name.startswith("_")]


def _is_made_in(value: object, module: ModuleType) -> bool:
    return getattr(value, "__module__", None) == module.__name__


def on_page_markdown(markdown: str, **_: object) -> str:
    """Return a page of docs/ as the site shows it.

    Links to documents of the repository's root become links to the site's copies. The word
    ``notest``, by which tests know that a block of code is no whole program, is removed.
    """
    for page, document in _PAGES.items():
        markdown = markdown.replace(f"](../{document}", f"]({page}")
    return re.sub(r"^(```\w+) notest$", r"\1", markdown, flags=re.MULTILINE)
