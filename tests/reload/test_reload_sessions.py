"""Sittings of a researcher with a small project: many edits in a row, of one running process.

After each the process answers as a fresh one with the same files does, and what it held lives on.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
from typing import Any

import pytest

from monarch_reload import NeedsRespawn, ReloadError

from .conftest import Project

FILES = {
    "reg": """
class Registry:
    def __init__(self, name):
        self.name, self._items = name, {}
    def register(self, key=None):
        def add(obj):
            k = key or obj.__name__
            if k in self._items:
                raise KeyError(f'{k} already in {self.name}')
            self._items[k] = obj
            return obj
        return add
    def build(self, key, **kw):
        return self._items[key](**kw)
    def names(self):
        return sorted(self._items)
MODELS = Registry('models')
LOSSES = Registry('losses')
""",
    "cfg": """
import dataclasses
from dataclasses import dataclass, field
LR = 0.1
STEPS = 10
@dataclass
class Config:
    lr: float = LR
    steps: int = STEPS
    tags: list = field(default_factory=list)
    def scaled(self):
        return self.lr * self.steps
DEFAULT = Config()
""",
    "data": """
from functools import lru_cache
from cfg import STEPS
SEED = 3
@lru_cache(maxsize=None)
def vocab():
    return {c: i for i, c in enumerate('abc')}
class Loader:
    def __init__(self, n):
        self.n, self.pos = n, 0
    def __iter__(self):
        return self
    def __next__(self):
        if self.pos >= self.n:
            raise StopIteration
        self.pos += 1
        return self.transform(self.pos)
    def transform(self, x):
        return x
def batches(n=STEPS):
    for i in range(n):
        yield augment(i)
def augment(i):
    return i
""",
    "model": """
from reg import MODELS, LOSSES
from cfg import DEFAULT
@MODELS.register()
class Net:
    hidden = 4
    def __init__(self, width=2):
        self.width, self.weights = width, [1.0] * width
    def forward(self, x):
        return x * self.scale()
    def scale(self):
        return sum(self.weights)
@LOSSES.register('mse')
def mse(a, b):
    return (a - b) ** 2
@LOSSES.register('l1')
def l1(a, b):
    return abs(a - b)
""",
    "train": """
import cfg
from cfg import Config
from data import Loader, batches, vocab
from reg import MODELS, LOSSES
import model
class Trainer:
    def __init__(self, config=None):
        self.config = config or Config()
        self.net = MODELS.build('Net')
        self.loss = LOSSES._items['mse']
        self.step_no = 0
        self.log = []
        self.hooks = {'after': self.after}
    def step(self, x):
        out = self.net.forward(x)
        l = self.loss(out, 0)
        self.step_no += 1
        self.hooks['after'](l)
        return l
    def after(self, l):
        self.log.append(l)
SUMMARY = f'{MODELS.names()} {cfg.LR}'
""",
}

ANSWER = """
def answer(reg, cfg, data, model, train):
    trainer = train.Trainer()
    return [
        trainer.step(3), reg.MODELS.names(), reg.LOSSES.names(), train.SUMMARY,
        cfg.Config().scaled(), sorted(data.vocab()), list(data.batches(3)), list(data.Loader(3)),
        model.Net.hidden,
    ]
"""
FRESH = f"""
import json, sys
sys.path.insert(0, sys.argv[1])
import reg, cfg, data, model, train
{ANSWER}
print(json.dumps(answer(reg, cfg, data, model, train)))
"""


class Sitting:
    """The project in this process, to be edited."""

    def __init__(self, project: Project) -> None:
        self.project = project
        for name, text in FILES.items():
            project.write(name, text)
        self.modules = [importlib.import_module(name) for name in FILES]
        self._space: dict[str, Any] = {}
        exec(ANSWER, self._space)
        self.agrees()

    def agrees(self) -> None:
        command = [sys.executable, "-B", "-c", FRESH, os.fspath(self.project.root)]
        fresh = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        live = json.loads(json.dumps(self._space["answer"](*self.modules)))
        assert live == json.loads(fresh.stdout)

    def edits(self, name: str, *pairs: tuple[str, str]) -> None:
        self.project.replace(name, *pairs)
        self.agrees()


@pytest.fixture
def sitting(project: Project) -> Sitting:
    return Sitting(project)


@pytest.mark.long
def test_a_training_project(sitting: Sitting) -> None:
    project = sitting.project
    _, _, data, model, train = sitting.modules
    trainer, loader, batches, net_class = (
        train.Trainer(),
        data.Loader(10),
        data.batches(5),
        model.Net,
    )
    trainer.step(1)
    next(loader)
    next(batches)
    sitting.edits("model", ("(a - b) ** 2", "(a - b) ** 2 / 2"))
    assert (trainer.step(1), trainer.step_no) == (2.0, 2)
    sitting.edits("cfg", ("LR = 0.1", "LR = 0.2"), ("    tags", "    warmup: int = 0\n    tags"))
    assert trainer.config.warmup == 0
    sitting.edits(
        "model",
        ("    hidden = 4\n", "    hidden = 8\n    dropout = 0.1\n"),
        ("self.width, self.weights = width", "self.width, self.weights = width + 1"),
    )
    assert (trainer.net.hidden, trainer.net.width, model.Net) == (8, 2, net_class)
    with pytest.raises(ReloadError, match="already"):
        project.replace("model", ("@LOSSES.register('l1')", "@LOSSES.register('mse')"))
    sitting.edits("model", ("@LOSSES.register('mse')\ndef l1", "@LOSSES.register('huber')\ndef l1"))
    sitting.edits(
        "train",
        ("self.loss(out, 0)", "self.loss(out, 0) * self.weight()"),
        ("    def after", "    def weight(self):\n        return self.config.lr\n    def after"),
    )
    trainer.step(1)
    project.write("utils", "def clip(x, hi=5):\n    return min(x, hi)\n")
    sitting.edits(
        "model",
        ("from cfg import DEFAULT\n", "from cfg import DEFAULT\nfrom utils import clip\n"),
        ("return x * self.scale()", "return clip(x * self.scale())"),
    )
    sitting.edits("utils", ("hi=5", "hi=2"))
    project.edit("utils", "LIMIT = 1\ndef clip(x):\n    return min(x, LIMIT)\n")
    sitting.agrees()
    sitting.edits("reg", ("sorted(self._items)", "sorted(self._items, reverse=True)"))
    sitting.edits(
        "data",
        ("'abc'", "'abcd'"),
        ("return i\n", "return -i\n"),
        ("return x\n", "return x * 10\n"),
    )
    assert (next(loader), next(batches)) == (20, -1)
    sitting.edits(
        "train", ("self.hooks['after'](l)", "for hook in self.hooks.values():\n            hook(l)")
    )
    trainer.step(2)
    assert len(trainer.log) == trainer.step_no == 4


@pytest.mark.long
def test_a_project_that_is_put_in_order(sitting: Sitting) -> None:
    project = sitting.project
    reg, _, _, model, train = sitting.modules
    trainer, mse = train.Trainer(), model.mse
    # Losses get a file of their own, in a registry that takes no name twice.
    text = project.path("model").read_text()
    cut = text.index("@LOSSES.register('mse')")
    project.write("losses", "from reg import LOSSES\n" + text[cut:])
    project.edit("model", text[:cut] + "from losses import mse, l1\n")
    sitting.agrees()
    assert reg.LOSSES._items["mse"] is mse is importlib.import_module("losses").mse
    sitting.edits("losses", ("** 2", "** 4"))
    assert trainer.loss(2, 0) == 16
    sitting.edits(
        "reg", ("LOSSES = Registry('losses')", "LOSSES = Registry('losses')\nMORE = Registry('m')")
    )
    assert reg.LOSSES._items["mse"] is mse
    # The settings become a package, which takes them from inside with a star.
    settings = project.path("cfg").read_text()
    project.path("cfg").unlink()
    (project.root / "cfg").mkdir()
    project.write("cfg.base", settings)
    project.write("cfg", "from .base import *\nfrom .base import DEFAULT\n")
    project.reloader.reload()
    sitting.agrees()
    sitting.edits("cfg.base", ("LR = 0.1", "LR = 0.7"))
    # A first base class is for a new process, and says so.
    project.write("layers", "class Layer:\n    gain = 2\n")
    with pytest.raises(NeedsRespawn, match="Net"):
        project.replace(
            "model",
            ("class Net:", "class Net(Layer):"),
            ("from cfg import DEFAULT\n", "from cfg import DEFAULT\nfrom layers import Layer\n"),
        )
    sitting.edits("model", ("class Net(Layer):", "class Net:"))


@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="no torch")
def test_a_network_in_the_middle_of_its_training(project: Project) -> None:
    nets = project.load(
        "nets",
        """
        import torch
        from torch import nn
        DIM = 4
        class Block(nn.Module):
            def __init__(self, d=DIM):
                super().__init__()
                self.fc = nn.Linear(d, d)
                self.register_buffer('count', torch.zeros(1))
            def forward(self, x):
                self.count += 1
                return act(self.fc(x))
        def act(x): return torch.relu(x)
        class Net(nn.Module):
            def __init__(self, n=2):
                super().__init__()
                self.blocks = nn.ModuleList(Block() for _ in range(n))
                self.hooked = []
                self.blocks[0].register_forward_hook(self.hook)
            def hook(self, mod, inp, out):
                self.hooked.append('old')
            def forward(self, x):
                for b in self.blocks: x = b(x)
                return x.sum()
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        sched = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 0.9 ** s)
        def step(x):
            optimizer.zero_grad()
            net(x).backward()
            optimizer.step()
            sched.step()
        """,
    )
    x = nets.torch.ones(1, 4)
    nets.step(x)
    net = nets.net
    weight = net.blocks[0].fc.weight
    held = net, nets.optimizer, nets.sched
    project.replace("nets", ("torch.relu(x)", "torch.tanh(x)"))
    project.replace("nets", ("'old'", "'new'"))
    nets.step(x)
    assert net.hooked == ["old", "new"]
    project.replace(
        "nets",
        ("DIM = 4\n", "DIM = 4\nSCALE = 2\n"),
        ("return act(self.fc(x))", "return SCALE * act(self.fc(x))"),
    )
    assert (nets.net, nets.optimizer, nets.sched) == held
    project.replace("nets", ("0.9 ** s", "0.5 ** s"))
    nets.step(x)
    assert nets.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**3)
    project.replace(
        "nets",
        (
            "    def hook(self",
            "    @torch.no_grad()\n    def norm(self):\n        return sum(q.norm() for q in"
            " self.parameters())\n    def hook(self",
        ),
    )
    assert float(net.norm()) > 0
    assert net.blocks[0].fc.weight is weight
    assert net.blocks[0].count.item() == 3
    project.replace("nets", ("def __init__(self, n=2)", "def __init__(self, n=3)"))
    project.replace(
        "nets",
        (
            "    def forward(self, x):\n        for",
            "    def forward(self, x, scale=1):\n        for",
        ),
    )
    assert (nets.net, nets.optimizer, nets.sched) == held
