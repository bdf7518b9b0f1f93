"""Edits of functions, classes and values, as people make them in the middle of a run."""

# ruff: noqa: E501  (programs in one line each)

from __future__ import annotations

from .matrix_cases import Case, Step

CASES = [
    Case(
        "dc_frozen_slots_kw",
        {
            "~m": """\
from dataclasses import dataclass, field
@dataclass(frozen=True, slots=True, kw_only=True)
class P:
    a: int = 1
    def f(self): return self.a
""",
        },
        "import ~m as m; live = m.P(a=3)",
        [
            Step(
                {
                    "~m": [("return self.a", "return self.a * 2")],
                },
                "assert live.f() == 6",
            ),
            Step(
                {
                    "~m": [("a: int = 1", "a: int = 10")],
                },
                "assert live.f() == 6 and m.P().f() == 20",
            ),
            Step(
                {
                    "~m": [("a: int = 10", "a: int = 10\n    b: int = 3")],
                },
                "assert live.f() == 6",
                refused="NeedsRespawn",
            ),
        ],
    ),
    Case(
        "callback_objects",
        {
            "~m": """\
class CB:
    def __init__(self, k): self.k = k
    def __call__(self): return self.k
CALLBACKS = []
SET = set()
ema = CB(1)
CALLBACKS.append(ema)
SET.add(ema)
CALLBACKS.append(CB(100))
def go(): return sorted(c() for c in CALLBACKS), [c() for c in SET]
""",
        },
        "import ~m as m; go = m.go; cbs = m.CALLBACKS; assert go() == ([1, 100], [1])",
        [
            Step(
                {
                    "~m": [("ema = CB(1)", "ema = CB(2)")],
                },
                """\
assert go() == ([2, 100], [2]), go()
assert m.CALLBACKS is cbs and cbs[0] is m.ema
""",
            ),
        ],
    ),
    Case(
        "argparse_default",
        {
            "~m": """\
import argparse
parser = argparse.ArgumentParser()
parser.add_argument('--lr', type=float, default=0.1)
parser.add_argument('--bs', type=int, default=4)
args = parser.parse_args([])
def lr(): return args.lr
""",
        },
        "import ~m as m; lr = m.lr",
        [
            Step(
                {
                    "~m": [("0.1", "0.2")],
                },
                "assert lr() == 0.2 and m.args.bs == 4",
            ),
            Step(
                {
                    "~m": [("parser.add_argument('--bs', type=int, default=4)\n", "")],
                },
                "assert lr() == .2 and not hasattr(m.args, 'bs')",
            ),
        ],
    ),
    Case(
        "all_conditional_expr_lambda_dict",
        {
            "~m": """\
OPS = {
    'add': lambda a, b: a + b,
    'mul': lambda a, b: a * b,
}
SCHED = [lambda s: s, lambda s: s * 2]
def run(n, a, b): return OPS[n](a, b)
""",
        },
        "import ~m as m; ops = m.OPS; add = ops['add']; run = m.run; sc = m.SCHED",
        [
            Step(
                {
                    "~m": [("a + b", "a + b + 1"), ("s * 2", "s * 3")],
                },
                """\
assert run('add', 1, 2) == 4 and m.SCHED[1](2) == 6
assert add(1, 2) == 4, 'held lambda'
assert ops['mul'](2, 3) == 6
""",
            ),
        ],
    ),
    Case(
        "enum_changes",
        {
            "~m": """\
import enum
class Mode(enum.Enum):
    TRAIN = "train"
    EVAL = "eval"
    def short(self): return self.value[0]
class Fl(enum.IntFlag):
    A = 1
    B = 2
class S(str, enum.Enum):
    X = "x"
    Y = "y"
TABLE = {Mode.TRAIN: 1, Mode.EVAL: 2}
def pick(mode):
    match mode:
        case Mode.TRAIN: return 't'
        case Mode.EVAL: return 'e'
""",
        },
        """\
import ~m as m, pickle
tr, ev = m.Mode.TRAIN, m.Mode.EVAL
f = m.Fl.A | m.Fl.B
x = m.S.X
data = pickle.dumps([tr, ev, f, x])
table = m.TABLE
table[tr] = 9
""",
        [
            Step(
                {
                    "~m": [
                        ('EVAL = "eval"\n', 'EVAL = "eval"\n    TEST = "test"\n'),
                        ("B = 2", "B = 2\n    C = 4"),
                        ('Y = "y"', 'Y = "y"\n    Z = "z"'),
                        ("value[0]", "value[:2]"),
                    ],
                },
                """\
assert m.Mode.TRAIN is tr and m.Mode("test").short() == "te" and tr.short() == "tr"
assert list(m.Mode) == [tr, ev, m.Mode.TEST]
assert m.pick(tr) == 't'
assert m.TABLE[tr] in (1, 9)
assert m.Fl(7) == m.Fl.A | m.Fl.B | m.Fl.C and f in m.Fl(7)
assert m.S.X is x and m.S("z") is m.S.Z and m.S.Z == "z"
assert pickle.loads(data) == [tr, ev, f, x]
assert pickle.loads(pickle.dumps(m.Mode.TEST)) is m.Mode.TEST
assert isinstance(m.Mode.TEST, type(tr))
""",
            ),
            Step(
                {
                    "~m": [
                        ('    EVAL = "eval"\n', ""),
                        (", Mode.EVAL: 2", ""),
                        ("        case Mode.EVAL: return 'e'\n", ""),
                    ],
                },
                """\
assert not hasattr(m.Mode, 'EVAL') and raises(ValueError, lambda: m.Mode('eval'))
assert [x.name for x in m.Mode] == ['TRAIN', 'TEST'] and ev.value == 'eval'
""",
            ),
            Step(
                {
                    "~m": [('TRAIN = "train"', 'FIT = "train"'), ("Mode.TRAIN", "Mode.FIT")],
                },
                """\
assert m.Mode.FIT.value == 'train' and m.Mode('train') is m.Mode.FIT and not hasattr(m.Mode, 'TRAIN')
assert m.pick(m.Mode.FIT) == 't'
assert m.TABLE[m.Mode.FIT] == 1
""",
            ),
        ],
    ),
    Case(
        "method_kinds",
        {
            "~m": """\
class C:
    n = 0
    def a(self): return ('i', type(self).__name__)
    @staticmethod
    def b(): return 's'
    @classmethod
    def c(cls): return cls.__name__
    @property
    def d(self): return 'd'
    e = 5
""",
        },
        "import ~m as m; x = m.C(); ba = x.a; bc = x.c",
        [
            Step(
                {
                    "~m": """\
class C:
    n = 0
    @staticmethod
    def a(): return 'sa'
    @classmethod
    def b(cls): return ('cb', cls.__name__)
    def c(self): return ('ic', self.n)
    d = 'plain'
    @property
    def e(self): return 'pe'
""",
                },
                """\
assert (x.a(), x.b(), x.c(), x.d, x.e) == ('sa', ('cb', 'C'), ('ic', 0), 'plain', 'pe')
x.d = 3
assert x.d == 3
assert m.C.a() == 'sa'
""",
            ),
            Step(
                {
                    "~m": """\
class C:
    n = 0
    def a(self): return ('i', type(self).__name__)
    @staticmethod
    def b(): return 's'
    @classmethod
    def c(cls): return cls.__name__
    @property
    def d(self): return 'd'
    e = 5
""",
                },
                "assert (x.a(), x.b(), x.c(), x.d, x.e) == (('i', 'C'), 's', 'C', 'd', 5)",
            ),
        ],
    ),
    Case(
        "descriptor_set_name_meta_registry",
        {
            "~m": """\
class Field:
    def __init__(self, conv): self.conv = conv
    def __set_name__(self, owner, name): self.name = name; self.owner = owner
    def __get__(self, obj, cls=None):
        if obj is None: return self
        return obj.__dict__.get('_' + self.name, None)
    def __set__(self, obj, value): obj.__dict__['_' + self.name] = self.conv(value)
class Meta(type):
    reg = {}
    def __new__(mcs, name, bases, ns):
        cls = super().__new__(mcs, name, bases, ns)
        mcs.reg[name] = cls
        return cls
class Model(metaclass=Meta):
    x = Field(int)
    def f(self): return self.x
class Plug:
    plugins = []
    def __init_subclass__(cls, **kw):
        super().__init_subclass__(**kw)
        Plug.plugins.append(cls)
class P1(Plug):
    def go(self): return 1
""",
            "~n": """\
from ~m import Plug, Model, Field
class P2(Plug):
    def go(self): return 2
class M2(Model):
    y = Field(float)
""",
        },
        """\
import ~m as m, ~n as n
live = m.Model()
live.x = '3'
p = n.P2()
m2 = n.M2()
m2.y = '1.5'
Model = m.Model
""",
        [
            Step(
                {
                    "~m": [
                        ("return self.x", "return (self.x, self.z)"),
                        ("x = Field(int)", "x = Field(int)\n    z = Field(str)"),
                    ],
                },
                """\
assert live.f() == (3, None); live.z = 5; assert live.f() == (3, '5')
assert m.Model is Model and m.Meta.reg['Model'] is Model and len(m.Meta.reg) == 2, m.Meta.reg
assert m.Model.__dict__['z'].owner is Model
assert m2.f() == (None, None)
""",
            ),
            Step(
                {
                    "~n": [
                        ("return 2", "return 22"),
                        ("y = Field(float)", "y = Field(int)"),
                        (
                            "class P2(Plug):",
                            "class P3(Plug):\n    def go(self): return 3\nclass P2(Plug):\n    extra = 1",
                        ),
                    ],
                },
                """\
assert [c.__name__ for c in m.Plug.plugins].count('P2') == 1, m.Plug.plugins
assert {c.__name__ for c in m.Plug.plugins} == {'P1', 'P2', 'P3'}
assert all(c().go() for c in m.Plug.plugins) and p.go() == 22 and p.extra == 1
assert type(p) in m.Plug.plugins
""",
            ),
        ],
    ),
    Case(
        "in_flight",
        {
            "~m": """\
import asyncio
def helper(x): return x
def gen():
    for i in range(5):
        yield helper(i)
async def coro(ev):
    await ev.wait()
    return helper(7)
""",
        },
        """\
import ~m as m, asyncio
g = m.gen(); assert next(g) == 0
loop = asyncio.new_event_loop(); ev = asyncio.Event()
async def start():
    return asyncio.ensure_future(m.coro(ev))
task = loop.run_until_complete(start()); loop.run_until_complete(asyncio.sleep(0))
""",
        [
            Step(
                {
                    "~m": [
                        ("return x", "return x * 100"),
                        ("yield helper(i)", "yield ('new', helper(i))"),
                        ("return helper(7)", "return ('new', helper(7))"),
                    ],
                },
                """\
assert next(g) == 100, 'suspended frames go on with their code but call new helpers'
assert list(m.gen())[1] == ('new', 100)
async def fin():
    ev.set(); return await task
assert loop.run_until_complete(fin()) == 700
assert loop.run_until_complete(m.coro(ev)) == ('new', 700)
loop.close()
""",
            ),
        ],
    ),
    Case(
        "const_in_defaults_classbody_decorators",
        {
            "~c": """\
N = 2
NAME = 'a'
""",
            "~u": """\
from ~c import N, NAME
import ~c as c
def reg(tag):
    def deco(f):
        f.tag = tag
        return f
    return deco
def f(x=N): return x
class K:
    size = N * 2
    tags = [NAME]
    def g(self, n=c.N): return n, self.size
@reg(NAME)
def h(): return h.tag
lam = lambda y=N: y
""",
        },
        "import ~c as c, ~u as u; f, h, k, lam = u.f, u.h, u.K(), u.lam",
        [
            Step(
                {
                    "~c": [("N = 2", "N = 5"), ("'a'", "'b'")],
                },
                """\
assert f() == 5 and k.g() == (5, 10) and u.K.tags == ['b'] and h() == 'b' and h.tag == 'b' and u.lam() == 5, (f(), k.g(), h())
""",
            ),
        ],
    ),
    Case(
        "multi_inherit_super",
        {
            "~m": """\
class A:
    def f(self): return ['A']
class B(A):
    def f(self): return ['B'] + super().f()
class C(A):
    def f(self): return ['C'] + super().f()
class D(B, C):
    def f(self): return ['D'] + super().f()
    def __init__(self, *a, **k):
        super().__init__(*a, **k)
        self.ok = 1
""",
        },
        "import ~m as m; d = m.D(); f = d.f",
        [
            Step(
                {
                    "~m": [("['B'] + super().f()", "['B2'] + super(B, self).f()")],
                },
                "assert d.f() == ['D', 'B2', 'C', 'A'] == f()",
            ),
            Step(
                {
                    "~m": [
                        (
                            "class B(A):",
                            "class M(A):\n    def f(self): return ['M'] + super().f()\nclass B(M):",
                        )
                    ],
                },
                "assert f() == ['D', 'B2', 'M', 'C', 'A'], f(); assert m.D().ok == 1",
            ),
            Step(
                {
                    "~m": [("    def f(self): return ['C'] + super().f()\n", "    pass\n")],
                },
                "assert f() == ['D', 'B2', 'M', 'A'], f()",
            ),
        ],
    ),
    Case(
        "two_modules_together",
        {
            "~a": "def f(x): return x\n",
            "~b": """\
from ~a import f
def g(): return f(1)
""",
        },
        "import ~a as a, ~b as b; g = b.g",
        [
            Step(
                {
                    "~a": "def f2(x, y): return x + y\n",
                    "~b": """\
from ~a import f2
def g(): return f2(1, 2)
""",
                },
                "assert g() == 3 and not hasattr(b, 'f') and not hasattr(a, 'f')",
            ),
            Step(
                {
                    "~a": """\
class F:
    n = 4
    def __call__(self): return self.n
f = F()
""",
                    "~b": """\
from ~a import f, F
class G(F):
    n = 5
KEEP = G()
def g(): return f() + KEEP()
""",
                },
                "assert g() == 9",
            ),
        ],
    ),
    Case(
        "mixin_registry_decorator_with_instances",
        {
            "~r": """\
REG = {}
def register(name):
    def deco(cls):
        REG[name] = cls
        return cls
    return deco
def build(name, **k): return REG[name](**k)
""",
            "~m": """\
from ~r import register
@register('relu')
class Relu:
    def __init__(self, k=1): self.k = k
    def __call__(self, x): return max(x, 0) * self.k
@register('gelu')
class Gelu:
    def __call__(self, x): return x
""",
        },
        "import ~m as m, ~r as r; a = r.build('relu', k=2); R = m.Relu",
        [
            Step(
                {
                    "~m": [("max(x, 0)", "max(x, 1)"), ("@register('gelu')", "@register('gelu2')")],
                },
                """\
assert a(0) == 2 and r.REG['relu'] is R and set(r.REG) == {'relu', 'gelu2'}, r.REG
assert r.build('gelu2')(3) == 3
""",
            ),
            Step(
                {
                    "~r": [
                        (
                            "return REG[name](**k)",
                            "return REG[name](**{kk: v * 10 for kk, v in k.items()})",
                        )
                    ],
                },
                "assert r.build('relu', k=2)(1) == 20 and set(r.REG) == {'relu', 'gelu2'}",
            ),
            Step(
                {
                    "~r": [("REG[name] = cls", "REG[name.upper()] = cls")],
                },
                "assert r.build('RELU', k=2)(1) == 20 and r.REG['RELU'] is R, r.REG",
            ),
        ],
    ),
    Case(
        "exception_hierarchy",
        {
            "~m": """\
class TrainError(Exception):
    def __str__(self): return 'old'
class Sub(TrainError): pass
def fail(): raise Sub('x')
def guarded():
    try: fail()
    except TrainError as e: return str(e)
""",
        },
        "import ~m as m; g = m.guarded; e = m.Sub()",
        [
            Step(
                {
                    "~m": [
                        ("'old'", "'new'"),
                        (
                            "class Sub(TrainError): pass",
                            "class Mid(TrainError): pass\nclass Sub(Mid):\n    code = 3",
                        ),
                    ],
                },
                "assert g() == 'new' and e.code == 3 and isinstance(e, m.Mid) and str(e) == 'new'",
            ),
        ],
    ),
    Case(
        "operators_dunder",
        {
            "~m": """\
class V:
    def __init__(self, x): self.x = x
    def __add__(self, o): return V(self.x + o.x)
    def __eq__(self, o): return self.x == o.x
    def __hash__(self): return hash(self.x)
    def __repr__(self): return f'V{self.x}'
""",
        },
        "import ~m as m; a, b = m.V(1), m.V(2); d = {a: 1}",
        [
            Step(
                {
                    "~m": [
                        (
                            "def __add__",
                            "def __len__(self): return self.x\n    def __call__(self): return 'c'\n    def __contains__(self, i): return i == self.x\n    def __enter__(self): return 'in'\n    def __exit__(self, *a): return True\n    def __getitem__(self, i): return i * self.x\n    def __add__",
                        ),
                        ("V(self.x + o.x)", "V(self.x * 10 + o.x)"),
                        ("f'V{self.x}'", "f'<{self.x}>'"),
                    ],
                },
                """\
assert (a + b).x == 12 and len(b) == 2 and a() == 'c' and 1 in a and b[3] == 6 and repr(a) == '<1>' and d[m.V(1)] == 1
with a as z: assert z == 'in'; raise ValueError
assert [*zip(b, range(2))]
""",
            ),
            Step(
                {
                    "~m": [("    def __call__(self): return 'c'\n", "")],
                },
                "assert not callable(a) and raises(TypeError, lambda: a())",
            ),
        ],
    ),
    Case(
        "init_subclass_kwargs_newtype_alias",
        {
            "~m": """\
from typing import Union, Callable, NewType, Literal, Annotated
Kind = Literal['a', 'b']
Num = Union[int, float]
UserId = NewType('UserId', int)
class Base:
    registry = {}
    def __init_subclass__(cls, /, kind=None, **kw):
        super().__init_subclass__(**kw)
        Base.registry[kind] = cls
class A(Base, kind='a'):
    def f(self): return 1
""",
        },
        "import ~m as m; a = m.A()",
        [
            Step(
                {
                    "~m": [
                        ("kind='a')", "kind='z')"),
                        ("return 1", "return 2"),
                        ("'a', 'b'", "'a', 'c'"),
                    ],
                },
                """\
assert set(m.Base.registry) == {'z'} or m.Base.registry['z'] is m.A
assert m.Base.registry['z'] is m.A is type(a) and a.f() == 2, m.Base.registry
import typing
assert typing.get_args(m.Kind) == ('a', 'c')
assert 'a' not in m.Base.registry, m.Base.registry
""",
            ),
        ],
    ),
    Case(
        "async_gen_ctx",
        {
            "~m": """\
import asyncio, contextlib
@contextlib.asynccontextmanager
async def res(x):
    yield ('r', x)
async def agen(n):
    for i in range(n): yield i
class W:
    async def __aenter__(self): return 1
    async def __aexit__(self, *a): return False
    def __await__(self):
        yield from asyncio.sleep(0).__await__()
        return 'w'
async def main(w):
    async with res(1) as r: pass
    async with w as q: pass
    return r, [i async for i in agen(2)], q, await w
""",
        },
        """\
import ~m as m, asyncio
w = m.W()
main = m.main
assert asyncio.run(main(w)) == (('r', 1), [0, 1], 1, 'w')
""",
        [
            Step(
                {
                    "~m": [
                        ("('r', x)", "('R', x)"),
                        ("yield i", "yield i * 10"),
                        ("return 1", "return 2"),
                        ("'w'", "'W'"),
                    ],
                },
                "assert asyncio.run(main(w)) == (('R', 1), [0, 10], 2, 'W')",
            ),
        ],
    ),
    Case(
        "import_alias_star_chain",
        {
            "~a": """\
X = 1
class C:
    v = 1
""",
            "~b": """\
from ~a import *
from ~a import X as Y, C as D
import ~a as al
""",
            "~c": """\
from ~b import *
Z = X + Y + al.X
def f(): return X, Y, D.v, C.v, Z
""",
        },
        "import ~c as c; f = c.f; assert f() == (1, 1, 1, 1, 3)",
        [
            Step(
                {
                    "~a": [("X = 1", "X = 2"), ("v = 1", "v = 9")],
                },
                "assert f() == (2, 2, 9, 9, 6), f()",
            ),
        ],
    ),
    Case(
        "class_renamed_and_its_old_name_left",
        {
            "~m": """\
class Trainer:
    count = 0
    class Inner:
        def f(self): return 1
    def step(self): return 1
    @classmethod
    def make(cls): return cls()
LAST = 1
""",
            "~u": """\
from ~m import Trainer
class Sub(Trainer): pass
def go(): return Sub().step()
""",
        },
        """\
import ~m as m, ~u as u, pickle
T = m.Trainer
t, inner = T(), T.Inner()
step, make, data = t.step, T.make, pickle.dumps(t)
t.n, T.count = 5, 9
""",
        [
            Step(
                {
                    "~m": [
                        ("class Trainer", "class FastTrainer"),
                        ("return 1", "return 2"),
                        ("LAST = 1", "Trainer = FastTrainer"),
                    ],
                },
                """\
assert m.FastTrainer is m.Trainer is T is type(t) is type(make())
assert T.__name__ == T.__qualname__ == 'FastTrainer' and T.count == 9 and t.n == 5
assert t.step() == step() == inner.f() == u.go() == 2 and issubclass(u.Sub, m.FastTrainer)
assert type(pickle.loads(data)) is type(pickle.loads(pickle.dumps(t))) is T
assert type(pickle.loads(pickle.dumps(inner))) is T.Inner
""",
            ),
            Step(
                {"~m": [("return 2", "return 3"), ("Trainer = FastTrainer", "1 / 0")]},
                "assert m.Trainer is T and step() == 2 and T.__name__ == 'FastTrainer'",
                refused="ZeroDivisionError",
            ),
            Step(
                {
                    "~m": [("return 3", "return 4"), ("\n1 / 0", "")],
                    "~u": [("import Trainer", "import FastTrainer as Trainer")],
                },
                "assert t.step() == step() == u.go() == 4 and not hasattr(m, 'Trainer')",
            ),
        ],
    ),
    Case(
        "function_renamed_and_its_old_name_left",
        {
            "~m": "def compute(): return 1\n",
            "~u": "from ~m import compute\ndef go(): return compute()\n",
        },
        "import ~m as m, ~u as u; f = m.compute",
        [
            Step(
                {"~m": "def compute_loss(): return 2\ncompute = compute_loss\n"},
                "assert u.go() == f() == 2 and m.compute_loss is m.compute is f and f.__name__ == 'compute_loss'",
            ),
            Step(
                {"~m": [("return 2", "return 3")]},
                "assert u.go() == f() == 3",
            ),
        ],
    ),
    Case(
        "class_of_other_bases_under_an_old_name",
        {"~m": "class A:\n    def f(self): return 1\n"},
        "import ~m as m; a = m.A()",
        [
            Step(
                {"~m": "class Base: pass\nclass B(Base):\n    def f(self): return 2\nA = B\n"},
                "assert m.A is m.B and m.A().f() == 2 and a.f() == 1",
            ),
        ],
    ),
    Case(
        "helpers_of_what_makes_definitions",
        {
            "~m": """\
import functools
PREFIX = 'p'
REGISTRY = {}
def norm(name): return name.lower()
def tagged(cls):
    cls.tag = norm(cls.__name__)
    return cls
def titled(f):
    title = norm(f.__name__)
    @functools.wraps(f)
    def inner(): return title, f()
    return inner
class Base:
    def __init_subclass__(cls):
        cls.key = PREFIX + cls.__name__
        REGISTRY[cls.key] = cls
class Meta(type):
    def __new__(mcs, name, bases, ns):
        return super().__new__(mcs, name, bases, {**ns, 'kind': norm(name)})
""",
            "~n": """\
from ~m import Base, Meta, tagged, titled
class A(Base): pass
@tagged
class B: pass
class C(metaclass=Meta): pass
@titled
def f(): return 1
""",
        },
        "import ~m as m, ~n as n; A, b, c, f, registry = n.A, n.B(), n.C(), n.f, m.REGISTRY",
        [
            Step(
                {"~m": [("name.lower()", "name.upper() + '!'")]},
                "assert (b.tag, c.kind, f()) == ('B!', 'C!', ('F!', 1)) and n.f is f and type(c) is n.C",
            ),
            Step(
                {"~m": [("'p'", "'q'")]},
                "assert m.REGISTRY is registry == {'qA': A} and n.A is A and A.key == 'qA', registry",
            ),
            Step(
                {"~m": [("REGISTRY = {}", "REGISTRY = dict()")]},
                "assert m.REGISTRY == {'qA': A} and n.A is A",
            ),
        ],
    ),
    Case(
        "overload_added",
        {
            "~m": """\
from typing import overload
@overload
def f(x: int) -> int: ...
@overload
def f(x: str) -> str: ...
def f(x):
    return x
"""
        },
        "import ~m as m; f = m.f",
        [
            Step(
                {
                    "~m": [
                        ("def f(x):", "@overload\ndef f(x: float) -> float: ...\ndef f(x):"),
                        ("return x", "return x * 2"),
                    ]
                },
                "assert f(1.5) == m.f(1.5) == 3 and m.f is f",
            ),
        ],
    ),
]
