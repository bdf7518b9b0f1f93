"""The files of the page, for a server or a report."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from monarch.observe.json_rows import json_text

FOLDER = Path(__file__).parent
STATIC = "/static/"
_LINK = re.compile(rf'<link rel="stylesheet" href="{STATIC}([\w.]+)">')
_SCRIPT = re.compile(rf'<script src="{STATIC}([\w.]+)"></script>\n?')
_LIVE_ONLY = "page.js"


def page_with(data: Mapping[str, Any]) -> str:
    """Return the page, with the data of `run_data`, as one file that needs no other."""
    title = escape(f"{data['name']}: {data['status']}")
    page = _text("index.html").replace("<title>monarch</title>", f"<title>{title}</title>")
    page = _LINK.sub(lambda match: f"<style>\n{_text(match[1])}</style>", page)
    page = _SCRIPT.sub(lambda match: _inline(match[1]), page)
    return (
        f'{page}<script id="data" type="application/json">{_as_json(data)}</script>\n'
        "<script>showFrozen(JSON.parse(document.getElementById('data').textContent))</script>\n"
    )


def _inline(name: str) -> str:
    return "" if name == _LIVE_ONLY else f"<script>\n{_text(name)}</script>\n"


def _text(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def _as_json(data: Mapping[str, Any]) -> str:
    """Return JSON in which nothing can end the HTML element around it, or begin another."""
    text: str = json.dumps(json.loads(json_text(data)))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
