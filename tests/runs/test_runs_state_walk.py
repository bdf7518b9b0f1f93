"""What belongs to a state, kind by kind: after a step that failed, all of it is as it was, bit for
bit, and the same objects."""

from __future__ import annotations

import array
import collections
import functools
import gc
import io
import itertools
import random
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch.runs.hold.state_copies import SAMPLED, Changed, keep, watch
from monarch.runs.hold.state_walk import is_library

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")


class TrainState(NamedTuple):
    ema: Any
    count: list[int]


class Ema:
    def __init__(self) -> None:
        self.value = torch.zeros(3)
        self.n = 0

    def __call__(self, x: float) -> None:
        self.n += 1
        self.value.mul_(0.9).add_(x)


class Slots:
    __slots__ = ("__hidden", "later", "n", "t")

    def __init__(self) -> None:
        self.n = 0
        self.t = torch.zeros(2)
        self.__hidden = [0]

    def step(self) -> None:
        self.n += 1
        self.t += 1
        self.__hidden[0] += 1
        self.later = 1


@dataclass(frozen=True)
class Frozen:
    counts: list[int] = field(default_factory=lambda: [0])


@dataclass(frozen=True, slots=True)
class FrozenSlots:
    counts: list[int] = field(default_factory=lambda: [0])


class Net(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 1)
        self.calls = 0
        self.hist: list[int] = []

    def forward(self, x: Any) -> Any:
        self.calls += 1
        self.hist.append(self.calls)
        self.linear.register_forward_hook(lambda *ignored: None)
        return self.linear(x)


class Lookahead(torch.optim.SGD):  # type: ignore[misc,name-defined]
    """Keeps a float64 sum, a step of whole numbers, and nothing for some; and counts aside."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1)
        self.k = 0

    @torch.no_grad()  # type: ignore[misc]
    def step(self, closure: Any = None) -> None:
        self.k += 1
        for group in self.param_groups:
            group["tuple"] = (*group.get("tuple", ()), 1)
            for parameter in group["params"]:
                state = self.state[parameter]
                state.setdefault("sum", torch.zeros_like(parameter, dtype=torch.float64))
                state["sum"] += parameter.grad.double() / 3
                state["step"] = state.get("step", 0) + 1
                state.setdefault("master", parameter.float().clone()).sub_(parameter.grad.float())
                state["none"] = None
                state.setdefault("own", Ema())(1.0)
                parameter.copy_(state["master"])


class Cycle:
    def __init__(self) -> None:
        self.me = self
        self.n = 0


class Odd(dict):  # type: ignore[type-arg]
    def __setitem__(self, key: Any, value: Any) -> None:
        raise TypeError("it is read-only")

    def clear(self) -> None:
        raise TypeError("it is read-only")


class Rows:
    """A reader that can be wound back by its owner alone."""

    def __init__(self) -> None:
        self.at = 0
        self.open()

    def open(self) -> None:
        self.rows = (number for number in range(self.at, 100))

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]
        self.open()


def deep(levels: int) -> Any:
    value: Any = [0]
    for _ in range(levels):
        value = {"in": value}
    return value


def deepest(value: Any) -> Any:
    while isinstance(value, dict):
        value = value["in"]
    return value


def with_state() -> Callable[[], int]:
    n = [0]
    total = 0

    def step() -> int:
        nonlocal total
        n[0] += 1
        total += 1
        return total + n[0]

    return step


def lru() -> Any:
    model = torch.nn.Linear(3, 1).to(torch.bfloat16)
    return SimpleNamespace(model=model, optimizer=Lookahead(model.parameters()))


def lookahead_step(it: Any) -> None:
    it.model(torch.ones(2, 3, dtype=torch.bfloat16)).sum().backward()
    it.optimizer.step()


def scheduled() -> Any:
    it = SimpleNamespace(model=torch.nn.Linear(2, 1))
    it.optimizer = torch.optim.Adam(it.model.parameters(), capturable=False)
    it.schedule = torch.optim.lr_scheduler.SequentialLR(
        it.optimizer,
        [
            torch.optim.lr_scheduler.LinearLR(it.optimizer),
            torch.optim.lr_scheduler.StepLR(it.optimizer, 3),
        ],
        milestones=[2],
    )
    it.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1)
    return it


def scheduled_step(it: Any) -> None:
    it.scaler.scale(it.model(torch.ones(1, 2)).sum()).backward()
    it.scaler.step(it.optimizer)
    it.scaler.update()
    it.schedule.step()


def shared() -> Any:
    base = torch.arange(12.0)
    a_list = [1]
    memory = np.arange(6)
    return SimpleNamespace(
        base=base,
        view=base.view(3, 4)[:, 1],
        also=base,
        one=a_list,
        two=a_list,
        memory=memory,
        part=memory[2:],
        repeated=torch.zeros(1).expand(4),
    )


def shared_step(it: Any) -> None:
    it.base = it.base + 1
    it.view.data = torch.zeros(2)
    it.also.data.add_(5)
    it.one = [*it.one, 2]
    it.two.append(3)
    it.part[:] = 9
    it.repeated.data[0].add_(1)


def weak() -> Any:
    owner = Ema()
    table: Any = weakref.WeakKeyDictionary()
    table[owner] = [0]
    return SimpleNamespace(
        owner=owner, ref=weakref.ref(owner), table=table, all=weakref.WeakSet([owner])
    )


def weak_step(it: Any) -> None:
    it.ref()(1.0)
    it.table[it.owner].append(1)
    it.all.clear()
    it.table.clear()


def drawn() -> Any:
    bits = np.random.PCG64(3)
    return SimpleNamespace(
        python=random.Random(1),
        torch=torch.Generator().manual_seed(1),
        legacy=np.random.RandomState(2),
        one=np.random.Generator(bits),
        two=np.random.Generator(bits),
    )


def draw(it: Any) -> None:
    it.python.gauss(0, 1)
    it.legacy.rand()
    it.one.random()
    it.two.random()
    torch.rand(1, generator=it.torch)
    random.random()
    np.random.rand()
    torch.rand(1)


def tensor_kinds() -> Any:
    leaf = torch.ones(3, requires_grad=True)
    leaf.grad = torch.ones(3)
    return SimpleNamespace(
        nan=torch.tensor([float("nan"), -0.0]),
        none=torch.zeros(0),
        bool=torch.zeros(2, dtype=torch.bool),
        complex=torch.zeros(2, dtype=torch.complex64).conj(),
        frozen=torch.nn.Parameter(torch.ones(2), False),
        leaf=leaf,
        gradient=leaf.grad,
        named=torch.ones(1),
        transposed=torch.ones(2, 3).t(),
        hidden=torch.ones(2, requires_grad=True) * 2,
        sparse=torch.eye(2).to_sparse(),
    )


def tensor_step(it: Any) -> None:
    it.nan.fill_(1)
    it.none.resize_(3)
    it.bool.logical_not_()
    it.complex.add_(1j)
    it.frozen.requires_grad_(True)
    it.leaf.requires_grad_(False)
    it.leaf.grad = torch.zeros(3)
    it.gradient.add_(1)
    it.named.note = "new"
    it.transposed.zero_()
    with torch.no_grad():
        it.hidden.add_(1)
    it.sparse = it.sparse * 2


def containers() -> Any:
    return SimpleNamespace(
        ordered=collections.OrderedDict(a=1, b=2),
        default=collections.defaultdict(list, {1: [1]}),
        counter=collections.Counter("aab"),
        deque=collections.deque([1, 2], maxlen=3),
        set={1, 2},
        frozen=frozenset([Ema()]),
        odd=Odd(a=[1]),
        bytes=bytearray(b"abc"),
        numbers=array.array("d", [1.0]),
        space=SimpleNamespace(n=[0]),
        chain=collections.ChainMap({"a": [1]}),
        proxy=types.MappingProxyType({"a": [1]}),
        file=io.BytesIO(b"abc"),
        text=io.StringIO("abc"),
        objects=np.array([[1], None], dtype=object),
        records=np.zeros(2, dtype=[("a", "i4")]),
    )


def container_step(it: Any) -> None:
    it.ordered.move_to_end("a")
    it.default[2].append(3)
    it.default[1].append(3)
    it.counter["a"] += 1
    it.deque.append(3)
    it.deque.append(4)
    it.set.add(3)
    next(iter(it.frozen))(1.0)
    it.odd["a"].append(2)
    dict.__setitem__(it.odd, "b", 3)
    it.bytes += b"d"
    it.numbers.append(2.0)
    it.space.n[0] += 1
    it.chain["a"].append(2)
    it.proxy["a"].append(2)
    it.file.write(b"xyzxyz")
    it.text.write("xyzxyz")
    it.objects[0].append(2)
    it.objects[1] = 3
    it.records["a"] = 7


def attributes() -> Any:
    it = SimpleNamespace(n=1, gone=2)
    it.step = functools.partial(setattr, it)
    return it


def attribute_step(it: Any) -> None:
    del it.gone
    it.lazy = [1]
    it.n = 5


def lazily() -> Any:
    return torch.nn.Sequential(torch.nn.LazyLinear(2))


KINDS: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "a module's attributes": (Net, lambda it: it(torch.ones(1, 3))),
    "an optimizer's attributes and state": (lru, lookahead_step),
    "schedules and a scaler": (scheduled, scheduled_step),
    "a tuple": (lambda: (torch.zeros(2), [0]), lambda it: (it[0].add_(1), it[1].append(1))),
    "a NamedTuple": (
        lambda: TrainState(torch.zeros(2), [0]),
        lambda it: (it.ema.add_(1), it.count.append(1)),
    ),
    "callable": (Ema, lambda it: it(1.0)),
    "slots": (Slots, lambda it: it.step()),
    "frozen": (Frozen, lambda it: it.counts.append(1)),
    "frozen, with slots": (FrozenSlots, lambda it: it.counts.append(1)),
    "5 levels": (lambda: deep(5), lambda it: deepest(it).append(1)),
    "5000 levels": (lambda: deep(5000), lambda it: deepest(it).append(1)),
    "a circle": (Cycle, lambda it: setattr(it.me, "n", 1)),
    "a bound method": (lambda: Ema().__call__, lambda it: it(1.0)),
    "partial": (lambda: functools.partial(Ema()), lambda it: it(1.0)),
    "a closure": (with_state, lambda it: it()),
    "what is shared": (shared, shared_step),
    "weak references": (weak, weak_step),
    "random numbers": (drawn, draw),
    "tensors": (tensor_kinds, tensor_step),
    "containers": (containers, container_step),
    "attributes": (attributes, attribute_step),
    "a lazy module": (lazily, lambda it: it(torch.ones(1, 3))),
    "counters": (
        lambda: [itertools.count(3), iter([1, 2]), {}],
        lambda it: (next(it[0]), list(it[1])),
    ),
    "what its owner winds back": (Rows, lambda it: (next(it.rows), setattr(it, "at", 1))),
}


def picture(value: Any, ids: bool = True) -> Any:
    """All that can be seen of an object, with who it is; written apart from what is tested."""
    seen: dict[int, int] = {}
    rows: list[Any] = []
    todo: list[Any] = [value]

    def name(one: Any) -> Any:
        if isinstance(one, (bool, int, float, complex, str, bytes, type(None), type)):
            return repr(one)
        if type(one) in (itertools.count, type(iter([]))):
            return repr(one.__reduce__())
        if isinstance(one, types.GeneratorType):
            return one.gi_frame.f_locals.get(".0").__reduce__()[1:]  # type: ignore[union-attr]
        if id(one) not in seen:
            seen[id(one)] = len(seen)
            todo.append(one)
        return (seen[id(one)], id(one)) if ids else seen[id(one)]

    name(value)
    todo.pop()
    while todo:
        one = todo.pop()
        row: list[Any] = [type(one).__name__, name(one)]
        if torch.nn.parameter.is_lazy(one):
            pass
        elif isinstance(one, torch.Tensor):
            plain = one.detach()
            if plain.layout is torch.strided:
                values = plain.resolve_conj().contiguous().reshape(-1)
                row += [values.view(torch.uint8).tolist() if values.numel() else [], plain.stride()]
                row += [plain.data_ptr() if ids and plain.numel() else 0]
            elif plain.layout is not torch.strided:
                row.append(plain.to_dense().tolist())
            row += [str(one.dtype), one.requires_grad, one.is_leaf and name(one.grad)]
        elif isinstance(one, np.ndarray):
            has_objects = one.dtype.hasobject
            row.append([name(each) for each in one.flat] if has_objects else one.tobytes())
            row.append(one.shape)
        elif isinstance(one, dict):
            row.append([(name(key), name(each)) for key, each in dict.items(one)])
            if isinstance(one, collections.OrderedDict):
                row.append([name(key) for key in one])
        elif isinstance(one, (list, tuple, collections.deque)):
            row.append([name(each) for each in one])
        elif isinstance(one, (set, frozenset)):
            row.append(sorted(str(name(each)) for each in one))
        elif isinstance(one, types.MappingProxyType):
            row.append([(name(key), name(each)) for key, each in one.items()])
        elif isinstance(one, weakref.WeakKeyDictionary):
            rows.append([*row, [(name(key), name(each)) for key, each in one.items()]])
            continue
        elif isinstance(one, weakref.WeakSet):
            rows.append([*row, [name(each) for each in one]])
            continue
        elif isinstance(one, (bytearray, array.array)):
            row.append(bytes(one))
        elif isinstance(one, (io.BytesIO, io.StringIO)):
            row += [one.getvalue(), one.tell()]
        elif isinstance(one, random.Random):
            row.append(one.getstate())
        elif isinstance(one, torch.Generator):
            row.append(one.get_state().tolist())
        elif isinstance(one, np.random.RandomState):
            row.append(repr(one.get_state()))
        elif isinstance(one, np.random.Generator):
            row.append(repr(one.bit_generator.state))
        elif isinstance(one, weakref.ref):
            row.append(name(one()))
        elif isinstance(one, types.MethodType):
            row.append(name(one.__self__))
        elif isinstance(one, functools.partial):
            row.append([name(one.func), [name(each) for each in one.args]])
        elif isinstance(one, types.FunctionType):
            cells = [each.cell_contents for each in one.__closure__ or ()]
            row.append([name(each) for each in cells])
        if not isinstance(one, torch.nn.Module | types.FunctionType) or hasattr(one, "calls"):
            for cls in type(one).__mro__:
                for slot in vars(cls).values():
                    if isinstance(slot, types.MemberDescriptorType) and "__slots__" in vars(cls):
                        row.append(name(slot.__get__(one)) if hasattr(one, slot.__name__) else "-")
        attributes = getattr(one, "__dict__", {})
        row.append([(key, name(each)) for key, each in attributes.items() if key != "_step_count"])
        rows.append(row)
    return rows


def global_draws() -> Any:
    return random.getstate(), repr(np.random.get_state()), torch.get_rng_state().tolist()


@pytest.mark.filterwarnings("ignore:.*Lazy modules:UserWarning", "ignore:Detected call of")
@pytest.mark.parametrize("kind", KINDS)
def test_all_of_a_state_is_as_it_was_after_a_step_that_failed(kind: str) -> None:
    make, step = KINDS[kind]
    actor = SimpleNamespace(it=make())
    if kind in ("an optimizer's attributes and state", "schedules and a scaler"):
        step(actor.it)  # so that there is a state already
    before, draws = picture(actor), global_draws()
    put_back = keep(actor)
    for _ in range(2):  # also when it fails once more
        step(actor.it)
        if kind != "what its owner winds back":
            assert (picture(actor), global_draws()) != (before, draws), "nothing was changed"
        assert put_back() == []
        if kind == "what its owner winds back":
            assert (actor.it.at, next(actor.it.rows)) == (0, 0)
        elif kind == "counters":
            assert [next(actor.it[0]), *actor.it[1]] == [3, 1, 2]
        else:
            assert (picture(actor), global_draws()) == (before, draws)


@pytest.mark.filterwarnings("ignore:.*Lazy modules:UserWarning", "ignore:Detected call of")
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "counters"])
def test_what_is_watched_is_put_back_or_found_to_have_changed(kind: str) -> None:
    make, step = KINDS[kind]
    actor = SimpleNamespace(it=make())
    before, draws = picture(actor), global_draws()
    put_back = watch(actor)
    assert put_back is not None
    step(actor.it)
    try:
        unkept = put_back()
    except Changed:
        return
    if kind == "what its owner winds back":
        assert (actor.it.at, next(actor.it.rows)) == (0, 0)
    elif not unkept:
        assert (picture(actor), global_draws()) == (before, draws)


def test_what_cannot_be_wound_back_is_named() -> None:
    actor = SimpleNamespace(rows=(n for n in range(9)), it={"pairs": [zip([1], [2], strict=True)]})
    assert keep(actor)() == ["self.rows (a generator)", "self.it['pairs'][0] (a zip)"]


def test_what_is_too_large_to_be_compared_in_each_call_is_named() -> None:
    actor = SimpleNamespace(numbers=list(range(5000)), rows=[[n] for n in range(5000)])
    put_back = watch(actor)
    assert put_back is not None
    actor.numbers.append(1)
    # Other modules of the test's process may have large arrays, of which samples are compared.
    assert [one for one in put_back() if one != SAMPLED] == ["the elements of self.rows"]
    assert len(actor.numbers) == 5000


def test_all_of_a_large_tensor_is_compared_where_calls_are_long() -> None:
    actor = SimpleNamespace(large=torch.zeros(400, 400))
    for seconds, is_found in ((0.0, False), (60.0, True)):
        put_back = watch(actor, call_seconds=seconds)
        assert put_back is not None
        actor.large.data[3, 3] = 1.0  # a single value, which the samples miss
        if is_found:
            with pytest.raises(Changed):
                put_back()
        else:
            put_back()
        actor.large.data[3, 3] = 0.0


CODE = """
import numpy as np
COUNT = 0
SEEN = []
EMA = np.zeros(3)
class Clock:
    ticks = 0
    log = []
def step(cache=[]):
    global COUNT, LAZY
    COUNT += 1
    SEEN.append(COUNT)
    EMA[:] += 1
    Clock.ticks += 1
    Clock.log.append(1)
    Clock.late = 1
    cache.append(1)
    step.calls = getattr(step, "calls", 0) + 1
    LAZY = [1]
"""


@pytest.fixture
def module(tmp_path: Path) -> Iterator[Any]:
    (tmp_path / "counted_task.py").write_text(CODE)
    sys.path.insert(0, str(tmp_path))
    import counted_task  # type: ignore[import-not-found]

    yield counted_task
    sys.path.remove(str(tmp_path))
    del sys.modules["counted_task"]


def seen_of(module: Any) -> Any:
    cache = module.step.__defaults__[0]
    names = sorted(name for name in vars(module) if not name.startswith("__"))
    clock = {name: one for name, one in vars(module.Clock).items() if not name.startswith("__")}
    return repr((module.COUNT, module.SEEN, module.EMA, clock, cache, vars(module.step), names))


@pytest.mark.parametrize("take", [keep, watch])
def test_names_of_the_users_modules_and_classes_are_put_back(
    module: Any, take: Callable[[object], Any]
) -> None:
    module.COUNT = 3
    before = seen_of(module)
    put_back = take(SimpleNamespace())
    module.step()
    assert seen_of(module) != before
    put_back()
    assert seen_of(module) == before


def test_names_of_modules_stay_as_newer_code_has_them(module: Any) -> None:
    put_back = keep(SimpleNamespace())
    module.step()
    module.COUNT = 50  # a reload has computed it anew
    put_back(is_same_code=False)
    assert (module.COUNT, module.SEEN) == (50, [])


def test_a_new_global_that_is_code_stays(module: Any) -> None:
    put_back = keep(SimpleNamespace())
    module.json = sys
    module.helper = lambda: 1
    put_back()
    assert hasattr(module, "json")
    assert hasattr(module, "helper")


def test_a_model_that_is_wrapped_is_kept_and_its_wrapper_is_not_held() -> None:
    class DistributedDataParallel(torch.nn.parallel.DistributedDataParallel):  # type: ignore[misc,name-defined]
        """Without a process group."""

        def __init__(self, module: Any) -> None:
            torch.nn.Module.__init__(self)
            self.module = module

    model = torch.nn.Linear(2, 1)
    actor = SimpleNamespace(parallel=DistributedDataParallel(model), n=0)
    actor.all = [actor.parallel]
    there = weakref.ref(actor.parallel)
    put_back = keep(actor)
    before = model.weight.clone()
    with torch.no_grad():
        model.weight.add_(1)
    actor.n, actor.all = 1, []
    put_back()
    assert torch.equal(model.weight, before)
    assert (actor.all, actor.n) == ([actor.parallel], 0)
    wrapped = actor.parallel = DistributedDataParallel(model)  # when ranks have met anew
    actor.all.clear()
    gc.collect()
    assert there() is None
    put_back()
    assert actor.parallel is wrapped


# Random graphs

LEAVES = st.one_of(st.integers(-3, 3), st.none(), st.text(max_size=2), st.booleans())


class Node:
    def __init__(self) -> None:
        self.a: Any = None


class SlotNode:
    __slots__ = ("a", "b")


MAKERS: list[Callable[[], Any]] = [
    list, dict, set, collections.deque, collections.OrderedDict, Node, SlotNode,
    lambda: torch.zeros(3), lambda: np.zeros(2), lambda: collections.defaultdict(list), bytearray,
    lambda: random.Random(1), Ema,
]  # fmt: skip


class Graph:
    """Objects that hold each other, as the numbers drawn say."""

    def __init__(self, draws: list[int]) -> None:
        self._draws = iter(draws)
        self.objects: list[Any] = []
        for _ in range(2 + self.draw(8)):
            self.objects.append(MAKERS[self.draw(len(MAKERS))]())
            if self.draw(4) == 0:
                self.objects.append((self.objects[-1], self.any()))
        for _ in range(12):
            self.change()

    def draw(self, below: int) -> int:
        return next(self._draws, 0) % below

    def any(self) -> Any:
        number = self.draw(2 * len(self.objects) + 2)
        return self.objects[number] if number < len(self.objects) else number

    def change(self) -> None:
        it, value, at = self.any(), self.any(), self.draw(3)
        if isinstance(it, (list, collections.deque)):
            it.append(value) if at or not it else it.pop()
        elif isinstance(it, dict):
            it.pop(at, None) if self.draw(3) == 0 else it.update({at: value})
        elif isinstance(it, set):
            it.symmetric_difference_update({at})
        elif isinstance(it, Ema):
            it(float(at))
            it.extra = value  # type: ignore[attr-defined]
        elif isinstance(it, (Node, SlotNode)):
            setattr(it, "ab"[at % 2], value)
        elif isinstance(it, torch.Tensor):
            [it.add_, it.data.sub_, lambda n: setattr(it, "data", torch.ones(n))][at](at + 1)
        elif isinstance(it, np.ndarray):
            it += at
        elif isinstance(it, bytearray):
            it.append(at)
        elif isinstance(it, random.Random):
            it.random()


@given(st.lists(st.integers(0, 999), min_size=60, max_size=160))
@pytest.mark.long
def test_any_graph_of_objects_is_as_it_was(draws: list[int]) -> None:
    graph = Graph(draws)
    actor = Node()
    actor.a = graph.objects[0]
    actor.b = [graph.objects[-1]]  # type: ignore[attr-defined]
    before = picture(actor)
    put_back = keep(actor)
    for _ in range(10):
        graph.change()
    actor.a = None
    assert put_back() == []
    assert picture(actor) == before


def test_recipes_are_followed_where_they_are_installed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their own objects have a part of a run's state."""
    module = types.ModuleType("monarch_recipes.some_recipe")
    module.__file__ = "/usr/lib/python3/site-packages/monarch_recipes/some_recipe.py"
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert not is_library(module.__name__)
    assert is_library("torch.nn")


def test_what_pip_installs_into_any_folder_is_a_library(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "some_library-1.0.dist-info").mkdir()
    record = tmp_path / "some_library-1.0.dist-info" / "RECORD"
    record.write_text("some_library/__init__.py,,\nsome_library/part/deep.py,,\nsome_file.py,,\n")
    files = {
        "some_library": "some_library/__init__.py",
        "some_library.part.deep": "some_library/part/deep.py",
        "some_file": "some_file.py",
        "some_project": "some_project.py",
    }
    for name, file in files.items():
        module = types.ModuleType(name)
        module.__file__ = str(tmp_path / file)
        monkeypatch.setitem(sys.modules, name, module)
    assert [name for name in files if not is_library(name)] == ["some_project"]


class _Rooted:
    def __init__(self, owner: object) -> None:
        self.owner = owner

    def __roots__(self) -> dict[str, object]:
        return {"owner": self.owner}


def test_what_an_actor_names_is_followed_though_it_is_of_a_library() -> None:
    owner = types.SimpleNamespace(step=1, seen=[1])
    library = type("Trainer", (), {"__module__": "torch.trainer"})()
    vars(library).update(owner=owner, step=3, weights=torch.ones(2))
    weights = library.weights
    put_back = keep(_Rooted(library))
    library.step, library.more = 4, 1
    library.weights = None
    owner.seen.append(2)
    with torch.no_grad():
        weights.add_(1)
    put_back()
    assert (library.step, owner.seen, hasattr(library, "more")) == (3, [1], False)
    assert library.weights is weights
    assert torch.equal(weights, torch.ones(2))


def test_stages_of_a_pipeline_are_followed() -> None:
    kind = type("Stage", (), {"__module__": "torch.distributed.pipelining.stage"})
    stage = kind()
    stage.fwd_cache, stage.output_chunks = {}, []
    put_back = keep(types.SimpleNamespace(stage=stage))
    stage.fwd_cache[0], stage.args = ((torch.ones(1),), []), 1
    stage.output_chunks.append(torch.ones(1))
    put_back()
    assert vars(stage) == {"fwd_cache": {}, "output_chunks": []}
