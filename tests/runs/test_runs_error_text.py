"""Errors in words."""

from __future__ import annotations

from monarch.runs.error_text import in_words


def test_of_an_error_that_only_puts_values_around_another_one_the_other_one_is_told() -> None:
    """As torch's pipelines do."""
    outer = RuntimeError("\n    [Stage 0] failed to run forward:\n    args: ...\n")
    outer.__cause__ = NameError("documint")
    assert in_words(outer) == "NameError: documint"
    assert in_words(RuntimeError("\n  alone")) == "RuntimeError: alone"
