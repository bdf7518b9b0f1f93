# ruff: noqa: E501  (programs in one line each)

"""Classes that a library compiles, or keeps in native code: pydantic, msgspec, attrs, ctypes, torch's autograd.

An edit lands as a fresh import would have it, or is refused in one process, where a mesh gets new
ones.
"""

from __future__ import annotations

from .matrix_cases import Case, Step

_KEEPS = "keeps the class in native code"
_COMPILES = "compiles the class"
_MODEL = """
from pydantic import BaseModel
class Model(BaseModel):
    rate: float = 1.0
    def twice(self):
        return self.rate * 2
"""
_STRUCT = """
import msgspec
class Inner(msgspec.Struct):
    v: int = 0
    def shown(self):
        return self.v
class Outer(msgspec.Struct):
    inner: Inner
D = msgspec.json.Decoder(Outer)
"""
_ATTRS = """
import attrs
def convert(x):
    return x + 1
@attrs.define
class A:
    v: int = attrs.field(default=1, converter=convert)
    w: list = attrs.field(factory=lambda: [1])
    u: int = attrs.field(default=0, validator=attrs.validators.lt(10))
"""
_EXEC = """
def method(limit):
    ns = {"limit": limit}
    exec("def check(self, v): return v <= limit", ns)
    return ns["check"]
def copied(limit):
    ns = {**globals(), "limit": limit}
    exec("def check(self, v): return v <= limit", ns)
    return ns["check"]
class A:
    check = method(10)
    other = copied(10)
"""

CASES = [
    Case(
        "pydantic_method",
        {"~m": _MODEL},
        "import ~m as m\nlive = m.Model()",
        [
            Step(
                {"~m": [("* 2", "* 3")]},
                "assert live.twice() == 3 == m.Model.model_validate_json('{}').twice()",
            ),
        ],
    ),
    Case(
        "msgspec_method",
        {"~m": _STRUCT},
        "import ~m as m\nlive = m.Inner(3)",
        [
            Step(
                {"~m": [("return self.v", "return self.v + 1")]},
                "assert live.shown() == 4 and m.D.decode(b'{\"inner\":{}}').inner.shown() == 1",
            ),
            Step(
                {"~m": [("v: int = 0", "v: int = 5")]},
                "assert live.shown() == 4 and m.Inner().v == 0",
                _COMPILES,
            ),
        ],
    ),
    Case(
        "native_decoder_that_an_instance_holds",
        {
            "~m": "import dataclasses, msgspec\n@dataclasses.dataclass\nclass Row:\n    v: int = 0\nclass Holder:\n    def __init__(self):\n        self.decoder = msgspec.json.Decoder(Row)\n"
        },
        "import ~m as m\nlive = m.Holder()\nassert live.decoder.decode(b'{}') == m.Row()",
        [
            Step(
                {"~m": [("v: int = 0", "v: int = 5")]},
                "assert live.decoder.decode(b'{}') == m.Row()",
                _KEEPS,
            )
        ],
    ),
    Case(
        "instance_of_a_native_base",
        {
            "~m": "import numpy\nclass Grid(numpy.ndarray):\n    unit = 1\n    def total(self):\n        return self.sum() * self.unit\nG = numpy.ones(3).view(Grid)\n"
        },
        "import ~m as m\nlive = m.G",
        [
            Step(
                {"~m": [("unit = 1", "unit = 2")]},
                "assert live.total() == 6 and type(live) is m.Grid",
            )
        ],
    ),
    Case(
        "models_inside_others_of_other_modules",
        {
            "~a": "from pydantic import BaseModel\nclass Leaf(BaseModel):\n    z: int = 1\n",
            "~b": "from __future__ import annotations\nfrom pydantic import BaseModel\nimport ~a as a\nclass Node(BaseModel):\n    kid: a.Leaf\n    def shown(self):\n        return self.kid.z\n",
            "~c": "from pydantic import TypeAdapter\nimport ~b as b\nclass Holder:\n    def __init__(self):\n        self.adapter = TypeAdapter(list[b.Node])\n",
        },
        "import ~a as a, ~b as b, ~c as c\nlive = c.Holder()\nnode = live.adapter.validate_python([{'kid': {'z': '4'}}])[0]\nassert node.shown() == 4",
        [
            Step(
                {"~b": [("self.kid.z", "-self.kid.z")]},
                "assert node.shown() == -4 and isinstance(node, b.Node)",
            ),
            Step(
                {"~a": [("z: int = 1", "z: str = ''")]},
                "assert node.shown() == -4 and isinstance(node.kid, a.Leaf)",
                _KEEPS,
            ),
        ],
    ),
    Case(
        "autograd_function_with_another_attribute",
        {
            "~m": "import torch\nclass F(torch.autograd.Function):\n    scale = 1.0\n    @staticmethod\n    def forward(ctx, x):\n        return x * F.scale\n    @staticmethod\n    def backward(ctx, g):\n        return g * F.scale\ndef run():\n    x = torch.ones(1, requires_grad=True)\n    y = F.apply(x)\n    y.backward()\n    return y.item(), x.grad.item()\n"
        },
        "import ~m as m\napply = m.F.apply\nassert m.run() == (1, 1)",
        [
            Step(
                {"~m": [("scale = 1.0", "scale = 2.0")]},
                "assert m.run() == (2, 2) and apply(m.torch.ones(1)).item() == 2",
            ),
            Step(
                {"~m": [("return g * F.scale", "return g * F.scale * 2")]},
                "assert m.run() == (2, 4)",
            ),
            Step(
                {"~m": [("scale = 2.0", "scale = 3.0\n    more = 1")]}, "assert m.run() == (3, 6)"
            ),
        ],
    ),
    Case(
        "attrs_converters_factories_and_validators",
        {"~m": _ATTRS},
        "import ~m as m\nlive = m.A(5)\nassert live.v == 6",
        [
            Step(
                {
                    "~m": [
                        ("converter=convert", "converter=lambda x: x + 2"),
                        ("[1]", "[2]"),
                        ("lt(10)", "lt(20)"),
                    ]
                },
                "assert m.A(5).v == 7 and m.A().w == [2] and m.A(u=15).u == 15 and type(live) is m.A\nlive.v = 8\nassert live.v == 10",
            ),
            Step({"~m": [("x + 2", "x + 3")]}, "assert m.A(5).v == 8"),
            Step(
                {"~m": [("lambda x: x + 3", "convert"), ("x + 1", "x + 4")]}, "assert m.A(5).v == 9"
            ),
        ],
    ),
    Case(
        "functions_of_exec_in_a_namespace_of_their_own",
        {"~m": _EXEC},
        "import ~m as m\nlive, held = m.A(), m.A.check",
        [
            Step(
                {"~m": [("method(10)", "method(20)"), ("copied(10)", "copied(20)")]},
                "assert all((live.check(15), m.A().check(15), live.other(15), held(live, 15)))",
            ),
            Step(
                {"~m": [("method(20)", "method(5)")]},
                "assert not live.check(15) and live.other(15) and not held(live, 15)",
            ),
        ],
    ),
    Case(
        "ctypes_class_with_another_attribute",
        {
            "~m": "import ctypes\nclass P(ctypes.Structure):\n    _fields_ = [('x', ctypes.c_int)]\n    unit = 1\n    def get(self):\n        return self.x * self.unit\n"
        },
        "import ~m as m\nlive = m.P(3)",
        [
            Step({"~m": [("unit = 1", "unit = 2")]}, "assert live.get() == 6 == m.P(3).get()"),
            Step({"~m": [("self.unit\n", "self.unit + 1\n")]}, "assert live.get() == 7"),
            Step({"~m": [("c_int)", "c_short)")]}, "assert live.get() == 7", _COMPILES),
        ],
    ),
]
