"""An error as a person is told of it."""

from __future__ import annotations

import pytest

from monarch.runs.record.error_text import in_words

ABOUT_DEBUGGING = (
    "Search for `cudaErrorAssert' in the documentation of CUDA.\n"
    "CUDA kernel errors might be asynchronously reported at some other API call.\n"
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            f"CUDA error: device-side assert triggered\n{ABOUT_DEBUGGING}",
            "RuntimeError: CUDA error: device-side assert triggered (a kernel has found a value "
            "that cannot be; it printed which)",
        ),
        (
            f"CUDA error: an illegal memory access was encountered\n{ABOUT_DEBUGGING}",
            "RuntimeError: CUDA error: an illegal memory access was encountered",
        ),
        ("CUDA error: out of memory", "RuntimeError: CUDA error: out of memory"),
        ("two lines\nof another", "RuntimeError: two lines\nof another"),
        ("", "RuntimeError"),
    ],
)
def test_what_cuda_says_is_one_line(said: str, told: str) -> None:
    assert in_words(RuntimeError(said)) == told


def test_of_an_error_that_only_puts_values_around_another_one_the_other_one_is_told() -> None:
    """As torch's pipelines do."""
    outer = RuntimeError("\n    [Stage 0] failed to run forward:\n    args: ...\n")
    outer.__cause__ = NameError("documint")
    assert in_words(outer) == "NameError: documint"
    assert in_words(RuntimeError("\n  alone")) == "RuntimeError: alone"
