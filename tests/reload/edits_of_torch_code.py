"""Edits of what torch holds: modules, hooks, schedules, operators, compiled functions."""

# ruff: noqa: E501  (programs in one line each)

from __future__ import annotations

from .matrix_cases import Case, Step

CASES = [
    Case(
        "lambda_held",
        {
            "~m": """\
import torch
from torch import nn

net = nn.Linear(1, 1, bias=False)
nn.init.ones_(net.weight)
opt = torch.optim.SGD(net.parameters(), lr=1.0)
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: 0.5)
net.register_forward_hook(lambda mod, i, o: o * 2)
key = lambda p: -p
REG = []
REG.append(lambda: 1)
two = [lambda s: s, lambda s: s]
DERIVED = sorted([1, 2, 3], key=lambda p: -p)
CALLED = key(5)
def go(): return [r() for r in REG]
""",
        },
        """\
import ~m as m, torch
sched, net, opt, key = m.sched, m.net, m.opt, m.key
x = torch.ones(1, 1)
opt.step()
sched.step()
ep = sched.last_epoch
assert net(x).item() == 2
""",
        [
            Step(
                {
                    "~m": [
                        ("s: 0.5", "s: 0.25"),
                        ("o * 2", "o * 3"),
                        ("p: -p\nREG", "p: p * 10\nREG"),
                        ("lambda: 1", "lambda: 7"),
                    ],
                },
                """\
assert m.sched is sched and sched.last_epoch == ep
opt.step()
sched.step()
assert sched.get_last_lr() == [.25], sched.get_last_lr()
assert net(x).item() == 3 and m.net is net and m.opt is opt, net(x)
assert key(2) == 20 and m.key is key and m.CALLED == 50, m.CALLED
assert m.go() == [7], m.go()
""",
            ),
            Step(
                {
                    "~m": [
                        ("key=lambda p: -p", "key=lambda p: p"),
                        ("[lambda s: s, lambda s: s]", "[lambda s: s, lambda s: s * 2]"),
                    ],
                },
                """\
assert m.DERIVED == [1, 2, 3], m.DERIVED
assert m.two[1](4) == 8 and m.two[0](4) == 4
""",
            ),
            Step(
                {
                    "~m": [("lambda: 7", "lambda a=3: a")],
                },
                "assert 3 in m.go()",
            ),
        ],
    ),
    Case(
        "jit_assigned",
        {
            "~m": """\
import torch
from torch import nn

def inner(x):
    # type: (torch.Tensor) -> torch.Tensor
    return x * 2
def f(x):
    # type: (torch.Tensor) -> torch.Tensor
    return inner(x) + 1
scr = torch.jit.script(f)
class N(nn.Module):
    def __init__(self):
        super().__init__(); self.l = nn.Linear(1, 1)
    def forward(self, x): return inner(x)
net = N()
snet = torch.jit.script(net)
g = torch.Generator(); g.manual_seed(3)
""",
        },
        """\
import warnings; warnings.simplefilter('ignore')
import ~m as m, torch; x = torch.ones(1); assert m.scr(x).item() == 3; net = m.net; g = m.g
""",
        [
            Step(
                {
                    "~m": [("+ 1", "+ 5")],
                },
                "assert m.scr(x).item() == 7 and m.net is net and m.g is g",
            ),
            Step(
                {
                    "~m": [("x * 2", "x * 20")],
                },
                "assert m.scr(x).item() == 25, m.scr(x); assert m.net is net",
            ),
        ],
    ),
    Case(
        "jit_script_autograd",
        {
            "~m": """\
import torch
from torch import nn
import torch.nn.functional as F

def inner(x):
    # type: (torch.Tensor) -> torch.Tensor
    return x * 2
@torch.jit.script
def scr(x: torch.Tensor) -> torch.Tensor:
    return inner(x) + 1
class Sq(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x
    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g
def use(x): return Sq.apply(x)
""",
        },
        """\
import warnings; warnings.simplefilter('ignore')
import ~m as m, torch
x = torch.tensor(3.0, requires_grad=True); y = m.use(x); ap = m.Sq.apply
assert m.scr(torch.ones(1)).item() == 3
""",
        [
            Step(
                {
                    "~m": [("return 2 * x * g", "return 100 * g")],
                },
                """\
x.grad = None
y.backward()
assert x.grad == 100, x.grad
x.grad = None
m.use(x).backward()
assert x.grad == 100
x.grad = None
ap(x).backward()
assert x.grad == 100
""",
            ),
            Step(
                {
                    "~m": [("return x * x", "return x * 5"), ("inner(x) + 1", "inner(x) + 5")],
                },
                """\
assert m.use(x).item() == 15 and ap(x).item() == 15
assert m.scr(torch.ones(1)).item() == 7
""",
            ),
            Step(
                {
                    "~m": [("return x * 2", "return x * 20")],
                },
                "assert m.scr(torch.ones(1)).item() == 25, m.scr(torch.ones(1))",
            ),
        ],
    ),
    Case(
        "custom_op",
        {
            "~m": """\
import torch
from torch import nn
import torch.nn.functional as F

@torch.library.custom_op("~lib::myop", mutates_args=())
def myop(x: torch.Tensor, k: int) -> torch.Tensor:
    return x * k
@myop.register_fake
def _(x, k):
    return torch.empty_like(x)
def use(x): return torch.ops.~lib.myop(x, 2), myop(x, 3)
""",
        },
        """\
import ~m as m, torch
x = torch.ones(2)
r = m.use(x)
assert r[0].tolist() == [2, 2]
held = m.myop
""",
        [
            Step(
                {
                    "~m": [("return x * k", "return x * k + 1")],
                },
                """\
r = m.use(x)
assert r[0].tolist() == [3, 3] and r[1].tolist() == [4, 4], r
assert held(x, 1).tolist() == [2, 2]
""",
            ),
            Step(
                {
                    "~m": [
                        ("return torch.empty_like(x)", "return x.new_empty(x.shape)"),
                        ("def use(x): return ", "def use(x): return 1, "),
                    ],
                },
                """\
r = m.use(x)
assert r[1].tolist() == [3, 3]
f = torch.compile(m.use, backend='eager', fullgraph=True)
assert f(x)[1].tolist() == [3, 3]
""",
            ),
        ],
    ),
    Case(
        "custom_sig",
        {
            "~m": """\
import torch
from torch import nn
import torch.nn.functional as F

@torch.library.custom_op("~lib::myop", mutates_args=())
def myop(x: torch.Tensor, k: int) -> torch.Tensor:
    return x * k
def use(x): return torch.ops.~lib.myop(x, 2), myop(x, 3)
""",
        },
        """\
import ~m as m, torch
x = torch.ones(2)
r = m.use(x)
assert r[0].tolist() == [2, 2]
held = m.myop
import gc
""",
        [
            Step(
                {
                    "~m": [
                        ("k: int)", "k: int, j: int = 0)"),
                        ("return x * k", "return x * k + 1"),
                    ],
                },
                """\
gc.collect()
[m.use(x) for _ in range(100)]
assert held(x, 2).tolist() == [2, 2]
""",
                refused="NeedsRespawn",
            ),
            Step(
                {
                    "~m": [("k: int, j: int = 0)", "k: int)")],
                },
                """\
gc.collect()
[m.use(x) for _ in range(100)]
assert held(x, 2).tolist() == [3, 3]
""",
            ),
        ],
    ),
    Case(
        "nn_forward",
        {
            "~m": """\
import torch
from torch import nn
import torch.nn.functional as F

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("steps", torch.zeros(()))
    def forward(self, x):
        self.steps += 1
        return self.fc(x)
model = Net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
""",
        },
        """\
import ~m as m, torch
p = m.model.fc.weight; o = m.opt; net = m.model
seen = []
h = net.register_forward_hook(lambda mod, i, out: seen.append(1))
x = torch.ones(1, 4); net(x)
""",
        [
            Step(
                {
                    "~m": [("return self.fc(x)", "return F.relu(self.fc(x)) * 0 + 7")],
                },
                """\
assert net(x).tolist() == [[7]*4] and m.model is net and m.opt is o and net.fc.weight is p
assert seen == [1, 1] and net.steps == 2
assert m.opt.param_groups[0]['params'][0] is p
""",
            ),
            Step(
                {
                    "~m": [
                        (
                            "self.fc = nn.Linear(4, 4)\n",
                            "self.fc = nn.Linear(4, 4)\n        self.scale = nn.Parameter(torch.ones(4))\n",
                        ),
                        ("* 0 + 7", "* (self.scale if hasattr(self, 'scale') else 2) * 0 + 8"),
                    ],
                },
                """\
assert net(x).tolist() == [[8]*4] and net.fc.weight is p, net.fc.weight
assert m.model is net, 'model must be kept'
assert m.opt is o
assert 'scale' in dict(m.Net().named_parameters())
""",
            ),
        ],
    ),
    Case(
        "pytree",
        {
            "~m": """\
import torch
from torch import nn
import torch.nn.functional as F

import torch.utils._pytree as pytree
class Batch:
    def __init__(self, x, y):
        self.x, self.y = x, y
def flat(b): return [b.x, b.y], None
def unflat(c, ctx): return Batch(*c)
pytree.register_pytree_node(Batch, flat, unflat, serialized_type_name="~Batch")
""",
        },
        """\
import ~m as m, torch
import torch.utils._pytree as pytree
b = m.Batch(1, 2)
assert pytree.tree_leaves(b) == [1, 2]
""",
        [
            Step(
                {
                    "~m": [("[b.x, b.y], None", "[b.y, b.x], None")],
                },
                """\
assert pytree.tree_leaves(b) == [2, 1] and pytree.tree_leaves(m.Batch(1, 2)) == [2, 1]
""",
            ),
            Step(
                {
                    "~m": [
                        ("self.x, self.y = x, y", "self.x, self.y = x, y\n        self.z = 1"),
                        ("class Batch:\n", "class Batch:\n    extra = 3\n"),
                    ],
                },
                """\
nb = m.Batch(5, 6)
assert nb.z == 1 and pytree.tree_leaves(nb) == [6, 5] and b.extra == 3
""",
            ),
        ],
    ),
    Case(
        "torch_func_tensor_subclass",
        {
            "~m": """\
import torch
from torch import nn
import torch.nn.functional as F

class Tag(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        out = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(out, Tag): out.tag = 'old'
        return out
    def hi(self): return 1
class Mode(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        SEEN.append('old')
        return func(*args, **(kwargs or {}))
SEEN = []
""",
        },
        """\
import ~m as m, torch
t = torch.ones(2).as_subclass(m.Tag)
md = m.Mode()
md.__enter__()
torch.ones(1)
assert m.SEEN[-1] == 'old'
""",
        [
            Step(
                {
                    "~m": [
                        ("out.tag = 'old'", "out.tag = 'new'"),
                        ("def hi(self): return 1", "def hi(self): return 2"),
                        ("append('old')", "append('new')"),
                    ],
                },
                """\
torch.ones(1)
md.__exit__(None, None, None)
assert m.SEEN[-1] == 'new'
assert (t + 1).tag == 'new' and t.hi() == 2 and type(t) is m.Tag
""",
            ),
        ],
    ),
    Case(
        "fsdp_like_param_hooks_checkpoint",
        {
            "~m": """\
import torch
from torch import nn
import torch.nn.functional as F

from torch.utils.checkpoint import checkpoint
def block(x): return x * 2
class Net(nn.Module):
    def __init__(self):
        super().__init__(); self.w = nn.Parameter(torch.ones(1))
        self._register_state_dict_hook(lambda mod, sd, prefix, meta: sd.update(extra=1))
        self.register_load_state_dict_post_hook(self.post)
        self.w.register_post_accumulate_grad_hook(self.acc)
        self.seen = []
    def post(self, mod, inc): self.seen.append('old')
    def acc(self, p): self.seen.append(('g', p.grad.item()))
    def forward(self, x): return checkpoint(block, x * self.w, use_reentrant=False)
""",
        },
        "import ~m as m, torch; n = m.Net(); y = n(torch.ones(1))",
        [
            Step(
                {
                    "~m": [
                        ("x * 2", "x * 3"),
                        ("append('old')", "append('new')"),
                        ("('g', p.grad.item())", "('G', p.grad.item())"),
                        ("extra=1", "extra=2"),
                    ],
                },
                """\
n(torch.ones(1)).sum().backward()
assert n.seen == [('G', 3.0)], n.seen
sd = n.state_dict()
assert sd.pop('extra') == 2
n.load_state_dict(sd)
assert n.seen[-1] == 'new'
""",
            ),
        ],
    ),
    Case(
        "seed_edit_only_reruns_seed",
        {
            "~m": """\
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
model = nn.Linear(2, 2)
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
ds = torch.utils.data.TensorDataset(torch.arange(10.))
loader = torch.utils.data.DataLoader(ds, batch_size=2, shuffle=False)
it = iter(loader)
def loss_fn(o): return o.sum()
def step():
    (x,) = next(it)
    l = loss_fn(model(x[None])); l.backward(); opt.step(); opt.zero_grad()
    return x[0].item()
""",
        },
        """\
import ~m as m, torch
m.step()
w = m.model.weight
keep = m.model, m.opt, m.loader, m.it
""",
        [
            Step(
                {
                    "~m": [("o.sum()", "o.mean()")],
                },
                "assert m.step() == 2 and (m.model, m.opt, m.loader, m.it) == keep",
            ),
            Step(
                {
                    "~m": [("torch.manual_seed(0)", "torch.manual_seed(1)")],
                },
                """\
assert m.step() == 4 and m.model is keep[0] and m.opt is keep[1], 'a changed seed must not make a new model'
""",
            ),
        ],
    ),
    Case(
        "partial_of_method_in_hooks",
        {
            "~m": """\
import torch
from torch import nn
import torch.nn.functional as F

import functools
def log_hook(name, store, mod, inp, out): store.append((name, float(out.sum())))
class Net(nn.Module):
    def __init__(self):
        super().__init__(); self.fc = nn.Linear(1, 1, bias=False); nn.init.ones_(self.fc.weight)
        self.store = []
        self.fc.register_forward_hook(functools.partial(log_hook, 'fc', self.store))
        self.fc.register_forward_hook(lambda m, i, o: o * 2)
        self.fc.weight.register_hook(self.grad_hook)
        self.register_full_backward_hook(self.bw)
    def grad_hook(self, g): return g * 1
    def bw(self, m, gi, go): self.store.append('bw')
    def forward(self, x): return self.fc(x)
""",
        },
        "import ~m as m, torch; n = m.Net(); n(torch.ones(1, 1)); n.store.clear()",
        [
            Step(
                {
                    "~m": [
                        ("(name, float(out.sum()))", "(name.upper(), float(out.sum()))"),
                        ("return g * 1", "return g * 10"),
                        ("append('bw')", "append('BW')"),
                        ("o: o * 2", "o: o * 3"),
                    ],
                },
                """\
y = n(torch.ones(1, 1))
y.sum().backward()
assert y.item() == 3 and n.store == [('FC', 1.0), 'BW'] and n.fc.weight.grad.item() == 30, (y, n.store, n.fc.weight.grad)
""",
            ),
        ],
    ),
]
