"""The reference page is made from the code, and says what the code says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools/reference.py"


def test_the_page_is_up_to_date() -> None:
    for needed in ("torch", "torchft", "torchtitan"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed")
    spec = importlib.util.spec_from_file_location("reference_page", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    assert page.PAGE.read_text(encoding="utf-8") == page.reference(), (
        "docs/reference.md is out of date: `make reference` writes it anew"
    )
