"""Graphs that torch made of code before an edit: no edit reaches them, and they are told."""

from __future__ import annotations

import gc
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install 'monarch-loop[train]'")

import torch

from monarch_reload import AuditReport
from monarch_reload.audit.graphs import SourceOutline

from .conftest import Project

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

TEXT = """\
import torch

SCALE = 2.0
OTHER = 1.0

def inner(x):
    return x * SCALE

def f(x):
    return inner(x) + 1

def unused(x):
    return x

class Net(torch.nn.Module):
    def forward(self, x):
        return f(x)
"""


def audit_after(project: Project, *pairs: tuple[str, str]) -> AuditReport:
    project.replace("graphs_mod", *pairs)
    return project.reloader.audit()


@pytest.mark.parametrize("module_too", [False, True], ids=["function", "module"])
def test_a_trace_is_told_when_code_in_it_changes(project: Project, module_too: bool) -> None:
    module = project.load("graphs_mod", TEXT)
    made = module.Net() if module_too else module.f
    graph = torch.jit.trace(made, torch.ones(2))
    audit = audit_after(project, ("return x\n", "return x + 1\n"))
    assert audit.ok, audit  # Nothing of it is in the graph.
    audit = audit_after(project, ("inner(x) + 1", "inner(x) + 2"))
    (text,) = audit.stale
    assert text.startswith("1 graph that torch.jit made of graphs_mod.f runs the code of ")
    assert graph(torch.ones(2)).tolist() == [3.0, 3.0]
    del graph
    assert project.reloader.audit().ok


def test_a_script_is_told_as_is_the_value_that_it_has_read(project: Project) -> None:
    text = TEXT.replace("SCALE = 2.0", "SCALE: float = 2.0").replace("* SCALE", "* 2.0")
    module = project.load("graphs_mod", text)
    graph = torch.jit.script(module.Net())
    assert audit_after(project, ("OTHER = 1.0", "OTHER = 3.0")).ok
    audit = audit_after(project, ("* 2.0", "* 4.0"))
    assert [one.name for one in audit.findings if one.is_stale] == ["graphs_mod.inner"]
    # What is compiled now is compiled of today's code, as functions that others call are.
    again, function = torch.jit.script(module.Net()), torch.jit.script(module.f)
    del graph
    assert project.reloader.audit().ok
    assert again(torch.ones(1)).item() == function(torch.ones(1)).item() == 5.0


def test_a_value_that_a_traced_function_reads_is_in_the_graph(project: Project) -> None:
    module = project.load("graphs_mod", TEXT)
    graph = torch.jit.trace(module.f, torch.ones(2))
    assert audit_after(project, ("OTHER = 1.0", "OTHER = 3.0")).ok
    audit = audit_after(project, ("SCALE = 2.0", "SCALE = 8.0"))
    (text,) = audit.stale
    assert "torch.jit made of graphs_mod.inner runs the code" in text
    assert graph(torch.ones(1)).item() == 3.0


def test_a_graph_that_the_edit_makes_again_is_not_told(project: Project) -> None:
    module = project.load("graphs_mod", f"{TEXT}\ntraced = torch.jit.trace(f, torch.ones(2))\n")
    audit = audit_after(project, ("inner(x) + 1", "inner(x) + 2"))
    assert audit.ok, audit
    assert module.traced(torch.ones(2)).tolist() == [4.0, 4.0]
    assert audit_after(project, ("inner(x) + 2", "inner(x) + 3")).ok


def test_an_edit_that_is_taken_back_leaves_no_old_graph(project: Project) -> None:
    module = project.load("graphs_mod", TEXT)
    graph = torch.jit.trace(module.f, torch.ones(2))
    assert not audit_after(project, ("inner(x) + 1", "inner(x) + 2")).ok
    assert audit_after(project, ("inner(x) + 2", "inner(x) + 1")).ok
    assert graph is not None


@pytest.mark.parametrize(
    "maker", ["torch.fx", pytest.param("torch.export", marks=pytest.mark.long)]
)
def test_a_graph_without_all_of_its_lines_is_said_to_be_older(project: Project, maker: str) -> None:
    module = project.load("graphs_mod", TEXT)
    net = module.Net()
    if maker == "torch.fx":
        graph: Any = torch.fx.symbolic_trace(net)
    else:
        graph = torch.export.export(net, (torch.ones(2),)).module()
    audit = audit_after(project, ("x * SCALE", "x * SCALE * 2"))
    assert audit.ok, audit
    assert audit.kept == [f"1 graph of {maker} runs what was traced before an edit"]
    if maker == "torch.export":
        (text,) = audit_after(project, ("return f(x)", "return f(x) * 2")).stale
        assert "1 graph that torch.export made of graphs_mod.Net.forward runs the code" in text
    del graph
    gc.collect()
    assert not project.reloader.audit().findings


def test_what_torch_compile_has_made_is_no_old_graph(project: Project) -> None:
    module = project.load("graphs_mod", TEXT)
    compiled = torch.compile(module.Net(), backend="eager")
    compiled(torch.ones(2))
    audit = audit_after(project, ("inner(x) + 1", "inner(x) + 2"))
    assert not audit.findings, audit
    assert compiled(torch.ones(2)).tolist() == [4.0, 4.0]


def test_functions_are_compared_without_where_they_stand() -> None:
    before = SourceOutline(b"A = 1\ndef f():\n    return A\nclass C:\n    def g(self): return 2\n")
    now = SourceOutline(
        b"# more\nA = 1\n\ndef f():\n    return A\nclass C:\n    def g(self): return 3"
    )
    assert before.changed_at({3, 5}, now) == ["C.g"]
    assert before.changed_at({3}, SourceOutline(b"A = 2\ndef f():\n    return A\n")) == ["f"]
    assert before.changed_at({3}, SourceOutline(b"A = 1\n")) == ["f"]
    assert before.changed_at({1}, now) == []
