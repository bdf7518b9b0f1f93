"""Keywords and errors that programs written for Monarch count on."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from monarch.actor import ProcMesh
from monarch.job import SlurmJob, set_current_job


@pytest.mark.parametrize(
    ("function", "keyword"),
    [
        (ProcMesh.rank_tensor, "dim"),
        (SlurmJob, "bind_to"),
        (set_current_job, "module_path"),
    ],
)
def test_keywords(function: Callable[..., Any], keyword: str) -> None:
    assert keyword in inspect.signature(function).parameters


def test_a_shell_is_on_one_host(program: Any) -> None:
    run = program("""
        from monarch.actor import hosts_from_config
        from monarch.job import shell
        try:
            shell(hosts_from_config("two"))
        except ValueError as error:
            print(error)
    """)
    assert run.wait() == 0
    assert run.lines[0].startswith("a shell needs a singleton HostMesh, and this one has 2 hosts")
