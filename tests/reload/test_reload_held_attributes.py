"""What new code sets by way of methods is not to be seen before the commit, or after an abort."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from monarch_reload import ReloadError

from .conftest import Project


@dataclass(frozen=True)
class Way:
    """A way in which `@register` of a library module keeps what it decorates.

    `held` gives what is called, `state` a number that it counts.
    """

    name: str
    library: str
    held: str = "lib.held()"
    state: str = "0"


WAYS = [
    Way(
        "attribute of an instance",
        """
class App:
    count = 0
    def register(self, f):
        self.handler = f
        self.count += 1
        return f
app = App()
register = app.register
def held():
    return app.handler()
""",
        state="lib.app.count",
    ),
    Way(
        "attribute of an instance inside of another",
        """
class Router:
    def __init__(self):
        self.routes, self.default = {}, None
class App:
    def __init__(self):
        self.router = Router()
    def register(self, f):
        assert f.__name__ not in self.router.routes, "taken already"
        self.router.routes[f.__name__] = self.router.default = f
        return f
register = App().register
def held():
    router = register.__self__.router
    assert router.routes["h"] is router.default
    return router.default()
""",
    ),
    Way(
        "global of the module",
        """
handler, count = None, 0
def register(f):
    global handler, count
    handler = f
    count += 1
    return f
def held():
    return handler()
""",
        state="lib.count",
    ),
    Way(
        "attribute of the function",
        """
def register(f):
    register.handler = f
    return f
def held():
    return register.handler()
""",
    ),
    Way(
        "container in a closure",
        """
def make():
    items = {}
    def register(f):
        items[f.__name__] = f
        return f
    def held():
        return items["h"]()
    return register, held
register, held = make()
""",
    ),
    Way(
        "attribute of the class",
        """
class Base:
    handler = None
    count = 0
    @classmethod
    def register(cls, f):
        cls.handler = staticmethod(f)
        cls.last = f
        cls.count += 1
        return f
register = Base.register
def held():
    return Base.last()
""",
        state="lib.Base.count",
    ),
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_what_a_decorator_keeps(way: Way, project: Project) -> None:
    lib = project.load("holding_library", way.library)
    module = project.load(
        "held_program",
        """
        from holding_library import register
        @register
        def h(x=1):
            return ("old", x)
        """,
    )
    live, space = module.h, {"lib": lib}
    before = eval(way.state, space)

    def answer() -> object:
        return eval(way.held, space)

    with pytest.raises(ReloadError, match="ZeroDivision"):
        project.replace("held_program", ("x=1", "x=2"), ('("old", x)', '("new", x)\n1 / 0'))
    assert answer() == ("old", 1)
    assert eval(way.state, space) == before

    new = project.path("held_program").read_text().replace("\n1 / 0", "")
    prepared = project.prepare(held_program=new)
    assert answer() == ("old", 1)
    assert eval(way.state, space) == before
    report = prepared.commit()
    assert answer() == ("new", 2)
    assert eval(way.state, space) in (before, before + 1)
    report.undo()
    assert answer() == ("old", 1)
    assert eval(way.state, space) == before

    project.edit("held_program", new)
    project.replace("held_program", ('"new"', '"newer"'))
    assert answer() == ("newer", 2)
    assert module.h is live


def test_a_subclass_told_to_its_base(project: Project) -> None:
    base = project.load(
        "told_base",
        """
        class Base:
            default, count = None, 0
            def __init_subclass__(cls):
                Base.default = cls
                Base.count += 1
        """,
    ).Base
    module = project.load("told_part", "from told_base import Base\nclass A(Base):\n    x = 1\n")
    cls = module.A
    with pytest.raises(ReloadError, match="ZeroDivision"):
        project.replace("told_part", ("x = 1", "x = 2\n1 / 0"))
    assert (base.default, base.count, cls.x) == (cls, 1, 1)
    prepared = project.prepare(
        told_part="from told_base import Base\nclass A(Base):\n    x = 2\n",
    )
    assert (base.default, base.count) == (cls, 1)
    prepared.commit()
    assert (base.default, cls.x, module.A) == (cls, 2, cls)


def test_settings_that_a_method_changes(project: Project) -> None:
    config = project.load(
        "held_config",
        """
        class Config:
            def __init__(self):
                self.lr, self.seen = 1, 0
            def merge(self, **values):
                self.__dict__.update(values)
            @property
            def cached(self):
                return self.__dict__.setdefault("made", [self.lr])
        config = Config()
        """,
    ).config
    project.load("held_user", "from held_config import config\nX = 1\n")
    with pytest.raises(ReloadError, match="ZeroDivision"):
        project.replace("held_user", ("X = 1", "config.merge(lr=5)\nconfig.cached\n1 / 0"))
    assert vars(config) == {"lr": 1, "seen": 0}
    prepared = project.prepare(
        held_user="from held_config import config\nconfig.merge(lr=5)\nconfig.cached\n",
    )
    assert vars(config) == {"lr": 1, "seen": 0}
    config.seen = 7
    made = config.cached
    prepared.commit()
    assert (config.lr, config.seen) == (5, 7)
    assert config.cached is made  # running code was first to make it


def test_a_registry_of_an_installed_package(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = project.root / "site-packages"
    installed.mkdir()
    monkeypatch.syspath_prepend(installed)
    (installed / "installed_registry.py").write_text(
        "class Registry:\n"
        "    def __init__(self):\n"
        "        self._map, self.log = {}, []\n"
        "    def register(self, thing):\n"
        "        assert thing.__name__ not in self._map, 'registered already'\n"
        "        self._map[thing.__name__] = thing\n"
        "        self.log.append(thing.__name__)\n"
        "        return thing\n"
    )
    models = project.load(
        "held_models", "from installed_registry import Registry\nMODELS = Registry()\n"
    ).MODELS
    module = project.load(
        "held_nets",
        "from held_models import MODELS\n@MODELS.register\nclass Net:\n    width = 1\n",
    )
    net, cls = module.Net(), module.Net
    with pytest.raises(ReloadError, match="ZeroDivision"):
        project.replace("held_nets", ("width = 1", "width = 2\n1 / 0"))
    assert models._map == {"Net": cls}
    assert net.width == 1
    project.edit(
        "held_nets",
        "from held_models import MODELS\n@MODELS.register\nclass Net:\n    width = 3\n",
    )
    assert models._map == {"Net": cls}
    assert net.width == 3
    project.edit("held_nets", "Y = 1\n")
    assert models._map == {}


def test_a_decorator_taken_away_leaves_an_inner_registry(project: Project) -> None:
    lib = project.load(
        "inner_library",
        """
        class Router:
            def __init__(self):
                self.routes = {}
        class App:
            def __init__(self):
                self.router = Router()
            def route(self, f):
                self.router.routes[f.__name__] = f
                return f
        app = App()
        """,
    )
    module = project.load(
        "inner_user",
        "from inner_library import app\n@app.route\ndef a():\n    return 1\n",
    )
    a = module.a
    project.replace("inner_user", ("@app.route\n", ""))
    assert lib.app.router.routes == {}
    assert module.a is a
