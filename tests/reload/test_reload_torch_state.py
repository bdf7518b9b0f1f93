"""Models, optimizers and what torch makes of Python code, across edits."""

from __future__ import annotations

import copy
import warnings

import pytest

from .conftest import Project

torch = pytest.importorskip("torch")

SOURCE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(2, 2)
        self.act = Act()

    def forward(self, x):
        return self.act(self.lin(x)) * 1

class Act(nn.Module):
    def forward(self, x):
        return x + 1

def loss(y):
    return y.sum()
"""


@pytest.fixture
def module(project: Project) -> object:
    return project.load("net_mod", SOURCE)


@pytest.mark.long
def test_forward_is_edited_and_the_optimizer_goes_on(project: Project, module: object) -> None:
    net = module.Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    x = torch.ones(1, 2)
    module.loss(net(x)).backward()
    optimizer.step()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    moments = copy.deepcopy(optimizer.state_dict())
    y = net(x)
    project.replace("net_mod", ("* 1", "* 2"), ("x + 1", "x + 1.0"), ("y.sum()", "y.mean()"))
    assert torch.equal(net(x), 2 * y)
    assert net.state_dict().keys() == before.keys()
    assert all(torch.equal(net.state_dict()[name], before[name]) for name in before)
    assert str(optimizer.state_dict()) == str(moments)
    optimizer.zero_grad()
    module.loss(net(x)).backward()
    optimizer.step()
    assert not torch.equal(net.lin.weight, before["lin.weight"])
    assert isinstance(net.act, module.Act)


def test_new_buffer_and_layer_are_for_new_instances(project: Project, module: object) -> None:
    net = module.Net()
    project.replace(
        "net_mod",
        ("self.act = Act()", "self.act = Act()\n        self.register_buffer('n', torch.ones(1))"),
        ("* 1", "* getattr(self, 'n', torch.zeros(1))"),
    )
    x = torch.ones(1, 2)
    assert net(x).abs().sum() == 0
    assert module.Net()(x).abs().sum() != 0
    assert "n" in module.Net().state_dict()


def test_hooks_and_bound_forwards(project: Project, module: object) -> None:
    text = SOURCE + "def hook(module, args, output):\n    return output * 10\n"
    project.edit("net_mod", text)
    act = module.Act()
    act.register_forward_hook(module.hook)
    forward = act.forward
    x = torch.zeros(1)
    assert act(x).item() == 10
    project.edit("net_mod", text.replace("* 10", "* 100").replace("x + 1", "x + 2"))
    assert (act(x).item(), forward(x).item()) == (200, 2)


def test_module_class_gets_another_base(project: Project, module: object) -> None:
    act = module.Act()
    project.replace(
        "net_mod",
        ("class Act(nn.Module)", "class Act(nn.Identity)"),
        ("x + 1", "super().forward(x) + 3"),
    )
    assert act(torch.zeros(1)).item() == 3
    assert isinstance(act, torch.nn.Identity)


def test_autograd_function(project: Project) -> None:
    source = """
import torch
class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, g):
        return g * 2
def f(x):
    return Double.apply(x)
"""
    module = project.load("auto_mod", source)
    x = torch.ones(1, requires_grad=True)
    pending = module.f(x)
    project.replace("auto_mod", ("x * 2", "x * 3"), ("g * 2", "g * 3"))
    pending.backward()
    assert x.grad.item() in (2, 3)
    x.grad = None
    y = module.f(x)
    y.backward()
    assert (y.item(), x.grad.item()) == (3, 3)


def test_decorators_of_torch(project: Project) -> None:
    source = """
import torch
@torch.no_grad()
def f(x):
    return x * 2
class A:
    @torch.inference_mode()
    def m(self, x):
        return x * 2
"""
    module = project.load("deco_mod", source)
    f, a = module.f, module.A()
    x = torch.ones(1, requires_grad=True)
    project.replace("deco_mod", ("x * 2", "x * 3"))
    assert (f(x).item(), a.m(x).item(), f(x).requires_grad) == (3, 3, False)
    project.replace("deco_mod", ("@torch.no_grad()\n", ""))
    assert module.f(x).requires_grad


@pytest.mark.long
def test_compiled_by_decorator_and_a_global_it_reads(project: Project) -> None:
    source = """
import torch
K = 2
@torch.compile(backend="eager")
def f(x):
    return helper(x) * K
def helper(x):
    return x + 1
class Net(torch.nn.Module):
    scale = 2
    def forward(self, x):
        return x * self.scale
"""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own
        module = project.load("comp_mod", source)
        f, net, x = module.f, module.Net(), torch.ones(1)
        net.compile(backend="eager")
        assert (f(x).item(), net(x).item()) == (4, 2)
        project.replace("comp_mod", ("x + 1", "x + 2"))
        assert f(x).item() == 6
        project.replace("comp_mod", ("K = 2", "K = 5"), ("scale = 2", "scale = 7"))
        assert (f(x).item(), net(x).item()) == (15, 7)
        project.replace("comp_mod", ("helper(x) * K", "helper(x) - K"))
        assert (f(x).item(), module.f(x).item()) == (-2, -2)
        torch._dynamo.reset()


def test_scripted_function_is_scripted_again(project: Project) -> None:
    source = """
import torch
@torch.jit.script
def f(x):
    return x * 2
def g(x):
    return f(x)
"""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated, and in use
        module = project.load("jit_mod", source)
        user = project.load("user_mod", "from jit_mod import f\n")
        x = torch.ones(1)
        assert module.g(x).item() == 2
        project.replace("jit_mod", ("x * 2", "x * 3"))
        assert (module.g(x).item(), user.f(x).item()) == (3, 3)


def test_dataset_and_loader_in_the_middle_of_an_epoch(project: Project) -> None:
    source = """
from torch.utils.data import Dataset, DataLoader
class Numbers(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, i):
        return i
def collate(items):
    return items
"""
    module = project.load("data_mod", source)
    loader = torch.utils.data.DataLoader(module.Numbers(), batch_size=2, collate_fn=module.collate)
    batches = iter(loader)
    assert next(batches) == [0, 1]
    project.replace(
        "data_mod", ("return i\n", "return i * 10\n"), ("return items", "return tuple(items)")
    )
    assert next(batches) == (20, 30)
    assert list(loader) == [(0, 10), (20, 30)]


def test_parametrized_and_sequential_of_edited_classes(project: Project, module: object) -> None:
    net = torch.nn.Sequential(module.Act(), module.Act())
    project.replace(
        "net_mod",
        ("x + 1", "x + self.step"),
        ("class Act(nn.Module):\n", "class Act(nn.Module):\n    step = 5\n"),
    )
    assert net(torch.zeros(1)).item() == 10
    assert [type(part) for part in net] == [module.Act] * 2


def test_loss_in_a_registry_and_a_partial(project: Project) -> None:
    source = """
import functools, torch
LOSSES = {}
def register(f):
    LOSSES[f.__name__] = f
    return f
@register
def l1(x, scale):
    return (x * scale).abs().sum()
loss = functools.partial(l1, scale=2)
weights = torch.nn.Parameter(torch.ones(2))
"""
    module = project.load("loss_mod", source)
    loss, weights = module.loss, module.weights
    weights.data += 1
    project.replace("loss_mod", (".sum()", ".mean()"))
    assert (loss(torch.ones(2)).item(), module.LOSSES["l1"](torch.ones(2), 1).item()) == (2, 1)
    assert module.weights is weights
