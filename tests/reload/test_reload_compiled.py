"""What torch.compile has made follows edits: all that is stale is compiled again, and no more."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch_reload.live.compiled import COMPILED

from .conftest import Project

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.timeout(120)

MODEL = """
import torch
import compiled_helpers
from compiled_helpers import scaled

FACTOR = 2.0

def loss(x):
    return scaled(x) * FACTOR

@torch.compile(backend=BACKEND)
def decorated(x):
    return compiled_helpers.scaled(x)

class Base(torch.nn.Module):
    def inner(self, x):
        return x + 1

    def forward(self, x):
        return self.inner(x)

class First(Base):
    pass

class Second(Base):
    def inner(self, x):
        return x + 2

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([First(), Second()])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x

class Plain:
    def step(self, x):
        return x + 1

    def rows(self, x):
        yield x + 1

PLAIN = Plain()

def by_method(x):
    return PLAIN.step(x)

def by_generator(x):
    return sum(row for row in PLAIN.rows(x))

def nested(x):
    def inner(y):
        return y + 1
    return inner(x)

def broken(x):
    x = PLAIN.step(x)
    torch._dynamo.graph_break()
    return scaled(x)

class Recomputed(torch.nn.Module):
    def inner(self, x):
        return x + 1

    def forward(self, x):
        return torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False)

def mapped(x):
    return torch.func.vmap(PLAIN.step)(x)

@torch.compiler.allow_in_graph
def opaque(x):
    return behind(x)

def behind(x):
    return x + 1

def by_opaque(x):
    return opaque(x)

@torch.compiler.disable
def aside(x):
    return x + 1

def by_aside(x):
    return aside(x) * 2

class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2

def by_function(x):
    return Doubled.apply(x)

def repeated(factor):
    def decorate(function):
        def wrapper(x):
            return function(x) * factor
        return wrapper
    return decorate

class Wrapped:
    @repeated(1.0)
    def step(x):
        return x + 1

def by_wrapper(x):
    return Wrapped.step(x)
"""
HELPERS = """
def scaled(x):
    return x * 3
"""


@pytest.fixture
def compilations() -> Iterator[list[str]]:
    """The functions that are compiled from here on."""
    import torch._dynamo.convert_frame as convert_frame

    names: list[str] = []
    handle = convert_frame.register_bytecode_hook(lambda code, _: names.append(code.co_name))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own
        yield names
    handle.remove()
    torch._dynamo.reset()


@pytest.fixture(params=["eager", pytest.param("aot_eager", marks=pytest.mark.long)])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Forms:
    """A loaded model; `of` is the value of a compiled form of it, for zeros."""

    def __init__(self, project: Project, backend: str, compilations: list[str]) -> None:
        self.project, self.backend, self.compilations = project, backend, compilations
        project.load("compiled_helpers", HELPERS)
        self.module: Any = project.load("compiled_model", MODEL.replace("BACKEND", repr(backend)))

    def compile(self, form: Any, **how: Any) -> Any:
        return torch.compile(form, backend=self.backend, **how)

    def edit(self, old: str, new: str, module: str = "compiled_model") -> tuple[str, ...]:
        """What the push says that is compiled again; nothing has been since then."""
        self.compilations.clear()
        report = self.project.replace(module, (old, new))
        self.undo = report.undo
        return tuple(name.partition(".")[2] for name in report.compiles_again)


@pytest.fixture
def forms(project: Project, backend: str, compilations: list[str]) -> Forms:
    return Forms(project, backend, compilations)


def value(compiled: Any) -> float:
    return float(compiled(torch.ones(1)).sum())


# form; line, its edit; value before and after; what is compiled again
CASES: dict[str, tuple[str, tuple[str, str], tuple[float, float], tuple[str, ...]]] = {
    "loss": ("loss", ("scaled(x) *", "scaled(x) * 10 *"), (6, 60), ("loss",)),
    "constant": ("loss", ("FACTOR = 2.0", "FACTOR = 4.0"), (6, 12), ("loss",)),
    "method": ("by_method", ("x + 1\n\n    def rows", "x + 5\n\n    def rows"), (2, 6),
               ("by_method",)),
    "generator": ("by_generator", ("yield x + 1", "yield x + 5"), (2, 6), ("by_generator",)),
    "nested": ("nested", ("y + 1", "y + 5"), (2, 6), ("nested",)),
    "vmap": ("mapped", ("x + 1\n\n    def rows", "x + 5\n\n    def rows"), (2, 6), ("mapped",)),
    "opaque": ("opaque", ("def behind(x):\n    return x + 1", "def behind(x):\n    return x + 5"),
               (2, 6), ("by_opaque",)),
    "function": ("by_function", ("return x * 2", "return x * 5"), (2, 5), ("by_function",)),
    "decorator": ("by_wrapper", ("return function(x) * factor", "return function(x) * 3 * factor"),
                  (2, 6), ("by_wrapper",)),
    "argument": ("by_wrapper", ("repeated(1.0)", "repeated(3.0)"), (2, 6), ("by_wrapper",)),
}  # fmt: skip
CASES["opaque"] = ("by_opaque", *CASES["opaque"][1:])


@pytest.mark.long_but(1)
@pytest.mark.parametrize("name", CASES)
def test_a_compiled_function_follows_what_it_has_inlined(forms: Forms, name: str) -> None:
    form, edit, (before, after), again = CASES[name]
    function = forms.compile(getattr(forms.module, form), fullgraph=True)
    other = forms.compile(forms.module.by_aside)  # which nothing of this concerns
    assert (value(function), value(other)) == (before, 4)
    assert forms.edit(*edit) == again
    assert (value(function), value(other)) == (after, 4)
    assert forms.compilations == [again[0]], "one compilation, and no other"
    forms.undo()
    assert value(function) == before
    assert value(other) == 4
    assert len(forms.compilations) == 2


@pytest.mark.long_but(1)
@pytest.mark.parametrize("how", ["compile(model)", "model.compile()", "blocks", "dynamic"])
def test_models_and_blocks_follow(forms: Forms, how: str) -> None:
    model = forms.module.Model()
    compiled = model
    if how == "compile(model)":
        compiled = forms.compile(model)
    elif how == "dynamic":
        compiled = forms.compile(model, dynamic=True)
    elif how == "model.compile()":
        model.compile(backend=forms.backend)
    else:
        model.blocks[0].compile(backend=forms.backend)
        model.blocks[1] = forms.compile(model.blocks[1], fullgraph=True)
    frame = "Base.forward" if how == "blocks" else "Model.forward"
    assert value(compiled) == 4
    assert forms.edit("x + 2", "x + 20") == (frame,)
    assert value(compiled) == 22
    assert forms.compilations == ["forward"]
    # One that had none of its own has one now.
    assert forms.edit("class First(Base):\n    pass", FIRST_WITH_INNER) == (frame,)
    assert value(compiled) == 121
    assert len(forms.compilations) == (2 if how == "blocks" else 1)
    forms.undo()
    assert value(compiled) == 22


FIRST_WITH_INNER = "class First(Base):\n    def inner(self, x):\n        return x + 100"


@pytest.mark.long
def test_a_helper_of_another_module(forms: Forms) -> None:
    assert value(forms.module.decorated) == 3
    broken = forms.compile(forms.module.broken)
    assert value(broken) == 6
    # The function that calls it by the module, and the part behind a graph break.
    assert forms.edit("x * 3", "x * 4", "compiled_helpers") == ("broken", "decorated")
    assert (value(forms.module.decorated), value(broken)) == (4, 8)
    assert len(forms.compilations) == 2, "what comes before the graph break stays"


def test_what_is_disabled_is_not_compiled_and_follows(forms: Forms) -> None:
    by_aside = forms.compile(forms.module.by_aside)
    assert value(by_aside) == 4
    forms.edit("def aside(x):\n    return x + 1", "def aside(x):\n    return x + 5")
    assert value(by_aside) == 12


def test_checkpointed_code_follows(forms: Forms) -> None:
    model = forms.compile(forms.module.Recomputed())
    assert value(model) == 2
    text = "class Recomputed(torch.nn.Module):\n    def inner(self, x):\n        return x + "
    assert forms.edit(text + "1", text + "5") == ("Recomputed.forward",)
    assert value(model) == 6


def test_a_backward_that_was_compiled_follows(forms: Forms) -> None:
    function = forms.compile(forms.module.by_function)

    def grad() -> float:
        x = torch.ones(1, requires_grad=True)
        function(x).sum().backward()
        assert x.grad is not None
        return float(x.grad)

    assert grad() == 2
    assert forms.edit("grad * 2", "grad * 7") == ("by_function",)
    assert grad() == 7
    assert forms.compilations == ["by_function"]


@pytest.mark.long
def test_lines_that_move_compile_nothing_again(forms: Forms) -> None:
    """Dynamo knows functions by their code objects: these stay, and know their new lines."""
    loss, model = forms.compile(forms.module.loss), forms.compile(forms.module.Model())
    assert (value(loss), value(model), value(forms.module.decorated)) == (6, 4, 3)
    line = forms.module.Model.forward.__code__.co_firstlineno
    assert forms.edit("FACTOR = 2.0\n", "FACTOR = 2.0\n\n# what it is\n") == ()
    assert (value(loss), value(model), value(forms.module.decorated)) == (6, 4, 3)
    assert forms.compilations == []
    assert forms.module.Model.forward.__code__.co_firstlineno == line + 2
    assert forms.project.reloader.audit().ok
    # An edit above, with more lines, of one of them.
    edited = "    if x is None:\n        return x\n    return scaled(x) * 2 * FACTOR"
    assert forms.edit("    return scaled(x) * FACTOR", edited) == ("loss",)
    assert (value(loss), value(model), value(forms.module.decorated)) == (12, 4, 3)
    assert forms.compilations == ["loss"]
    assert forms.module.Model.forward.__code__.co_firstlineno == line + 4
    forms.undo()
    assert forms.module.Model.forward.__code__.co_firstlineno == line + 2
    assert (value(loss), value(model)) == (6, 4)
    # What moved is found by its place by later edits, wide ones too. The file has both.
    assert forms.edit("x + 2", "x + 20") == ("Model.forward", "loss")
    assert (value(loss), value(model)) == (12, 22)
    assert forms.edit("import torch\n", "import torch\nMORE = 1\n") == ()
    assert forms.edit("y + 1", "y + 5") == ()
    assert (value(loss), value(model), forms.module.nested(1)) == (12, 22, 6)
    assert forms.compilations == []
    assert forms.project.reloader.audit().ok


@pytest.mark.long
def test_many_edits_do_not_use_up_what_dynamo_compiles_of_a_function(forms: Forms) -> None:
    """It would go on without compiling, or raise where a whole graph is wanted."""
    limit = torch._dynamo.config.recompile_limit
    function = forms.compile(forms.module.by_method, fullgraph=True)
    loss = forms.compile(forms.module.loss, fullgraph=True)
    assert (value(function), value(loss)) == (2, 6)
    text = "def step(self, x):\n        return x + {}\n\n    def rows"
    for number in range(1, limit + 3):
        forms.edit(text.format(number), text.format(number + 1))
        forms.project.replace("compiled_helpers", (f"x * {number + 2}", f"x * {number + 3}"))
        assert (value(function), value(loss)) == (number + 2, 2 * (number + 3))
        assert sorted(forms.compilations) == ["by_method", "loss"]


@pytest.mark.long
def test_other_graphs_of_the_same_function_stay(forms: Forms) -> None:
    """Of a class that both blocks inherit, one graph each."""
    first, second = forms.compile(forms.module.First()), forms.compile(forms.module.Second())
    assert (value(first), value(second)) == (2, 3)
    for number in range(2, 16):
        forms.edit(f"x + {number}\n\nclass Model", f"x + {number + 1}\n\nclass Model")
        assert (value(first), value(second)) == (2, number + 2)
        # Graphs that are gone count, until all of the function are forgotten.
        assert forms.compilations in (["forward"], ["forward", "forward"])
    assert forms.compilations == ["forward"] or number != 3


def test_what_was_compiled_before_there_was_a_reloader_follows(
    forms: Forms, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, loss = forms.compile(forms.module.by_method), forms.compile(forms.module.loss)
    assert (value(function), value(loss)) == (2, 6)
    monkeypatch.setattr(COMPILED, "_made", {})
    # Nobody knows what they went through.
    again = forms.edit("x + 1\n\n    def rows", "x + 5\n\n    def rows")
    assert again == ("by_method", "loss")
    assert (value(function), value(loss)) == (6, 6)


@pytest.mark.long
def test_a_refused_push_compiles_nothing_again(forms: Forms) -> None:
    function = forms.compile(forms.module.by_method)
    assert value(function) == 2
    forms.compilations.clear()
    with pytest.raises(Exception, match="boom"):
        forms.project.replace(
            "compiled_model", ("x + 1\n\n    def rows", "x + 5\n\n    def rows"),
            ("FACTOR = 2.0", "raise ValueError('boom')"),
        )  # fmt: skip
    assert value(function) == 2
    assert forms.compilations == []


def test_notes_hold_no_graph_and_no_code_of_torch(forms: Forms) -> None:
    mapped = forms.compile(forms.module.mapped)
    assert value(mapped) == 2
    known = [one for one in COMPILED._made.values() if one.code() is mapped.__wrapped__.__code__]
    assert [code.co_name for code in known[0].traced] == ["mapped", "step"]
    torch._dynamo.reset()
    assert not [one for one in COMPILED._made.values() if one in known]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_what_inductor_has_compiled_follows(
    project: Project, compilations: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch._inductor.config as inductor

    monkeypatch.chdir(tmp_path)  # where g++ is called
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(inductor, "compile_threads", 1)
    forms = Forms(project, "inductor", compilations)
    model, loss = forms.compile(forms.module.Model()), forms.compile(forms.module.loss)
    assert (value(model), value(loss)) == (4, 6)
    assert forms.edit("x + 2", "x + 20") == ("Model.forward",)
    assert (value(model), value(loss)) == (22, 6)
    assert forms.compilations == ["forward"]


def test_nothing_is_imported_for_it(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is anything forgotten of what was not compiled."""
    from types import ModuleType

    class Dynamo(ModuleType):
        def reset(self) -> None:
            import antigravity  # noqa: F401

    module = project.load("plain_mod", "def f():\n    return 1\n")
    monkeypatch.setitem(sys.modules, "torch._dynamo", Dynamo("torch._dynamo"))
    before = set(sys.modules)
    project.edit("plain_mod", "VALUE = 1\ndef f():\n    return 2\n").undo()
    assert module.f() == 1
    assert set(sys.modules) <= before
