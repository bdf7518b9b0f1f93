"""Edits of code that is written the way projects write it: one habit each."""

# ruff: noqa: E501  (programs in one line each)

from __future__ import annotations

from .matrix_cases import Case, Step

_MADE = "def make(a, b):\n    def inner(x, y=1):\n        try:\n            a()\n            b()\n        except ValueError:\n            return 'caught'\n        return x, y\n    return inner\n"
_PROXY = "class Proxy:\n    __slots__ = ('__wrapped__',)\n    def __init__(self, wrapped):\n        object.__setattr__(self, '__wrapped__', wrapped)\n    @property\n    def __class__(self):\n        return type(self.__wrapped__)\n    def __getattr__(self, name):\n        return getattr(self.__wrapped__, name)\n    def __setattr__(self, name, value):\n        setattr(self.__wrapped__, name, value)\n    def __call__(self, *a, **k):\n        return ('proxy', self.__wrapped__(*a, **k))\n"
_BOUND = "import inspect, functools\ndef bound(f):\n    signature = inspect.signature(f)\n    @functools.wraps(f)\n    def inner(*a, **k):\n        return f(**signature.bind(*a, **k).arguments)\n    return inner\n"

CASES = [
    Case(
        "closure_that_catches_less",
        {"~m": _MADE},
        "import ~m as m\ndef fails():\n    raise ValueError\nf = m.make(int, fails); assert f(1) == 'caught'",
        [
            Step(
                {
                    "~m": [
                        (
                            "            b()\n        except ValueError:\n            return 'caught'\n",
                            "        except ValueError:\n            return 'caught'\n        else:\n            if x:\n                b()\n",
                        )
                    ]
                },
                "assert raises(ValueError, lambda: f(1)) and f(0, 1) == (0, 1)",
            ),
            Step(
                {"~m": [("x, y=1", "x, *, y=1"), ("return x, y", "return y, x")]},
                "assert f(0) == f(0, 1) == (0, 1) and m.make(int, int)(0, y=1) == (1, 0)",
            ),
        ],
    ),
    Case(
        "held_lambda_that_moved_before_its_edit",
        {
            "~lib": "class Schedule:\n    n = 0\n    def __init__(self, f):\n        self.f = f\n    def step(self):\n        self.n += 1\n        return self.f(self.n)\n",
            "~m": "from ~lib import Schedule\nS = Schedule(lambda step: step + 1)\n",
        },
        "import ~m as m; s = m.S; s.step()",
        [
            Step({"~m": [("S =", "X = 1\nY = 2\nS =")]}, "assert m.S is s and s.step() == 3"),
            Step({"~m": [("step + 1", "step + 100")]}, "assert m.S is s and s.step() == 103"),
        ],
    ),
    Case(
        "annotations_are_taken_away",
        {
            "~m": "import typing\nclass A:\n    x: int = 1\ndef hints():\n    return typing.get_type_hints(A)\n"
        },
        "import ~m as m; a = m.A()",
        [Step({"~m": [("x: int = 1", "x = 2")]}, "assert m.hints() == {} and a.x == 2")],
    ),
    Case(
        "mapping_that_loads_when_it_is_asked",
        {
            "~m": "def woken(*a):\n    raise RuntimeError('woken')\nclass Lazy(dict):\n    values = items = keys = __iter__ = __len__ = __eq__ = woken\n    __hash__ = None\nL = Lazy(a=1)\ndef f():\n    return 1\n"
        },
        "import ~m as m; L = m.L",
        [
            Step({"~m": [("return 1", "return 2")]}, "assert m.f() == 2 and m.L is L"),
            Step({"~m": [("return 2", "return 3\nX = [1]")]}, "assert m.f() == 3 and m.L is L"),
        ],
    ),
    Case(
        "proxies_that_say_they_are_functions",
        {
            "~lib": _PROXY,
            "~m": "from ~lib import Proxy\n@Proxy\ndef f(x):\n    return x\nclass A:\n    pass\nTHING = Proxy(A())\n",
        },
        "import ~m as m; f, thing = m.f, m.THING",
        [
            Step({"~m": [("return x", "return -x")]}, "assert m.f(1) == f(1) == ('proxy', -1)"),
            Step(
                {"~m": [("f(x)", "f(x, y=3)")]},
                "assert f(1) == m.f(1, y=2) == ('proxy', -1) and m.THING is thing",
            ),
            Step(
                {"~m": [("return -x", "return x, y")]}, "assert f(1) == m.f(1) == ('proxy', (1, 3))"
            ),
        ],
    ),
    Case(
        "lazy_import_is_not_woken",
        {
            "~heavy": "import sys\nsys.~awake = True\nSIZE = 1\n",
            "~m": "import importlib.util, sys\ndef lazy(name):\n    spec = importlib.util.find_spec(name)\n    spec.loader = importlib.util.LazyLoader(spec.loader)\n    module = importlib.util.module_from_spec(spec)\n    sys.modules[name] = module\n    spec.loader.exec_module(module)\n    return module\n",
            "~n": "from ~m import lazy\nheavy = lazy('~heavy')\nX = 1\ndef size():\n    return heavy.SIZE\n",
        },
        "import ~n as n, sys",
        [
            Step(
                {"~n": [("return heavy", "return 10 * heavy")]}, "assert not hasattr(sys, '~awake')"
            ),
            Step(
                {"~n": [("X = 1", "X = [2]")]}, "assert n.X == [2] and not hasattr(sys, '~awake')"
            ),
            Step({"~n": [("X = [2]", "X = 3")]}, "assert n.size() == 10 and sys.~awake"),
            Step({"~heavy": [("SIZE = 1", "SIZE = 2")]}, "assert n.size() == 20; del sys.~awake"),
        ],
    ),
    Case(
        "modules_inside_of_objects",
        {
            "~c": "LR = 1\nOTHER = 1\n",
            "~m": "import ~c as c\nclass S:\n    def __init__(self, module):\n        self.module = module\nK = c.LR\n",
        },
        "import ~m as m, ~c as c",
        [
            Step(
                {
                    "~c": [("LR = 1", "LR = 2")],
                    "~m": [
                        (
                            "K = c.LR",
                            "K = c.LR + c.OTHER\nONE = S(c)\nTABLE = {'c': c}\nALL = [c], (c,)",
                        )
                    ],
                },
                "import sys; c = sys.modules['~c']; assert m.K == 3 and m.TABLE['c'] is c and m.ALL == ([c], (c,)) and m.ALL[0][0] is m.ALL[1][0] is c is m.ONE.module",
            )
        ],
    ),
    Case(
        "settings_assigned_to_a_module",
        {"~c": "LR = 1\n", "~d": "FLAG = 1\n", "~m": "import ~c, ~d\nX = 1\n"},
        "import ~m as m, ~c as c, ~d as d",
        [
            Step(
                {"~m": [("X = 1", "~c.LR = 5\n~d.FLAG = 5\n1 / 0")]},
                "assert (c.LR, d.FLAG, m.X) == (1, 1, 1)",
                refused="ZeroDivisionError",
            ),
            Step(
                {"~m": [("1 / 0", "X = ~c.LR")], "~c": [("LR = 1", "LR = 1\nZ = 1")]},
                "assert (c.LR, c.Z, d.FLAG, m.X) == (5, 1, 5, 5)",
            ),
            Step(
                {"~c": [("LR = 1", "LR = 2")]},
                "assert (c.LR, m.X) == (5, 5), (c.LR, m.X)",
            ),
        ],
    ),
    Case(
        "settings_assigned_to_properties_and_slots",
        {
            "~c": "class A:\n    __slots__ = ('y',)\nclass B:\n    _rate = 0\n    @property\n    def rate(self):\n        return self._rate\n    @rate.setter\n    def rate(self, value):\n        self._rate = value\na, b = A(), B()\na.y = 1\n",
            "~m": "from ~c import a, b\nX = 1\n",
        },
        "import ~m as m; a, b = m.a, m.b",
        [
            Step(
                {"~m": [("X = 1", "a.y = 5\nb.rate = 7\n1 / 0")]},
                "assert (a.y, b.rate) == (1, 0)",
                refused="ZeroDivisionError",
            ),
            Step({"~m": [("1 / 0", "X = 2")]}, "assert (a.y, b.rate, m.X) == (5, 7, 2)"),
        ],
    ),
    Case(
        "settings_read_from_all_globals",
        {
            "~m": "lr = 1\nbatch = 8\nkeys = [k for k, v in globals().items() if k[0] != '_' and isinstance(v, int)]\nconfig = {k: globals()[k] for k in keys}\nsteps = 3\nBY_DIR = [n for n in dir() if n.islower() and n[0] != '_']\n"
        },
        "import ~m as m",
        [
            Step({"~m": [("lr = 1", "lr = 2")]}, "assert m.config == {'lr': 2, 'batch': 8}"),
            Step(
                {"~m": [("batch = 8", "batch = 8\nseed = 4")]},
                "assert m.config == {'lr': 2, 'batch': 8, 'seed': 4} and m.BY_DIR == ['batch', 'config', 'keys', 'lr', 'seed', 'steps'], (m.config, m.BY_DIR)",
            ),
            Step({"~m": [("\nseed = 4", "")]}, "assert m.config == {'lr': 2, 'batch': 8}"),
        ],
    ),
    Case(
        "settings_overridden_by_exec",
        {
            "~m": "lr = 1\nsteps = 5\nOVERRIDES = 'lr = 99'\nexec(OVERRIDES)\nTOTAL = lr * steps\n",
        },
        "import ~m as m",
        [
            Step({"~m": [("lr = 1", "lr = 2")]}, "assert m.lr == 99 and m.TOTAL == 495"),
            Step({"~m": [("steps = 5", "steps = 6")]}, "assert m.TOTAL == 594"),
        ],
    ),
    Case(
        "settings_read_from_a_module_as_a_whole",
        {
            "~c": "LR = 1\nBATCH = 2\n",
            "~lib": "def read(module):\n    return {n: getattr(module, n) for n in dir(module) if n.isupper()}\n",
            "~m": "import ~c\nimport ~c as c\nfrom ~lib import read\nV = {k: v for k, v in vars(c).items() if k.isupper()}\nD = sorted(n for n in ~c.__dict__ if n.isupper())\nN = [n for n in dir(~c) if n.isupper()]\nR = read(c)\nX = 1\n",
        },
        "import ~m as m",
        [
            Step({"~m": [("X = 1", "X = 2")]}, "assert m.X == 2 and m.N == ['BATCH', 'LR']"),
            Step(
                {"~c": [("LR = 1", "LR = 5\nNEW = 1")]},
                "assert m.V == m.R == {'LR': 5, 'BATCH': 2, 'NEW': 1} and m.D == m.N == ['BATCH', 'LR', 'NEW']",
            ),
        ],
    ),
    Case(
        "models_by_the_names_of_their_module",
        {
            "~models": "def resnet():\n    return 1\ndef _hidden():\n    pass\n",
            "~m": "import ~models as models\nNAMES = sorted(n for n, v in vars(models).items() if callable(v) and n[0] != '_')\ndef build(name):\n    return models.__dict__[name]()\n",
        },
        "import ~m as m; build = m.build",
        [
            Step(
                {"~models": [("def _hidden", "def vit():\n    return 2\ndef _hidden")]},
                "assert m.NAMES == ['resnet', 'vit'] and build('vit') == 2",
            )
        ],
    ),
    Case(
        "decorator_that_reads_the_signature",
        {
            "~lib": _BOUND,
            "~m": "from ~lib import bound\n@bound\ndef f(x, lr):\n    return x, lr\nCALLS = []\nclass Net:\n    size = [1]\n    @bound\n    def g(self, x):\n        return x\nclass Trainer:\n    def __init__(self, cls):\n        self.net = cls()\nT = Trainer(Net)\n",
        },
        "import ~m as m; f, calls, trainer, net, size = m.f, m.CALLS, m.T, m.T.net, m.Net.size",
        [
            Step(
                {"~m": [("f(x, lr)", "f(x, rate)"), ("return x, lr", "return x, rate")]},
                "assert m.f(1, rate=2) == f(1, rate=2) == (1, 2) and m.CALLS is calls",
            ),
            Step({"~m": [("return x, rate", "return rate, x")]}, "assert f(1, rate=2) == (2, 1)"),
            Step(
                {"~m": [("g(self, x)", "g(self, x, y)"), ("return x\n", "return x, y\n")]},
                "assert net.g(1, y=2) == (1, 2) and m.T is trainer and m.Net.size is size",
            ),
        ],
    ),
]
