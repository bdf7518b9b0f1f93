"""Compiled callers of edited code. Dynamo guards neither inlined methods nor class attributes."""

from __future__ import annotations

import warnings

import pytest

from .conftest import Project

torch = pytest.importorskip("torch")

SOURCE = """
import torch

def scale(x):
    return x * 2

class Net(torch.nn.Module):
    def inner(self, x):
        return x + 1

    def forward(self, x):
        return scale(self.inner(x))
"""


@pytest.mark.timeout(60)
@pytest.mark.parametrize("wide", [False, True], ids=["narrow", "wide"])
def test_compiled_callers_do_not_go_stale(project: Project, wide: bool) -> None:
    module = project.load("net_mod", SOURCE)
    net = module.Net()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own
        compiled = torch.compile(net, backend="eager")
        helper = torch.compile(module.scale, backend="eager")
        one = torch.ones(1)
        assert (compiled(one).item(), helper(one).item()) == (4, 2)
        text = SOURCE.replace("x + 1", "x + 10").replace("x * 2", "x * 3")
        if wide:
            text = text.replace("import torch\n", "import torch\nLIMIT = 5\n", 1)
        report = project.edit("net_mod", text)
        assert (compiled(one).item(), helper(one).item()) == (33, 3)
        report.undo()
        assert (compiled(one).item(), helper(one).item()) == (4, 2)
        torch._dynamo.reset()
