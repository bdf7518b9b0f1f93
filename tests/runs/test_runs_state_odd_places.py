"""State in places where few would look for it: hooks of parameters, members of enums, an object's
class and its whole namespace."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import pytest

from monarch.runs.hold.state_copies import SAMPLED, PutBack, keep, watch

torch = pytest.importorskip("torch")

Take = Callable[[object], PutBack | None]


class Mode(enum.Enum):
    TRAIN = 1
    REST = 2


class Holder:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class OtherHolder(Holder):
    pass


def put_back(take: Take, state: object, change: Callable[[], object], **options: bool) -> None:
    undo = take(state)
    assert undo is not None
    change()
    # Other modules of the test's process may have large arrays, of which samples are compared.
    assert [one for one in undo(**options) if one != SAMPLED] == []


@pytest.fixture(params=[keep, watch])
def take(request: pytest.FixtureRequest) -> Take:
    found: Take = request.param
    return found


@pytest.mark.parametrize("has_one_before", [False, True])
def test_hooks_of_parameters_do_not_pile_up(take: Take, has_one_before: bool) -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    if has_one_before:
        weight.register_hook(lambda gradient: gradient + 1)

    def change() -> None:
        weight.register_hook(lambda gradient: gradient * 5)
        weight.register_post_accumulate_grad_hook(lambda one: one.grad.zero_())

    put_back(take, Holder(weight=weight), change)
    weight.sum().backward()
    assert weight.grad.tolist() == ([2, 2] if has_one_before else [1, 1])


def test_a_hook_that_was_removed_is_there_again(take: Take) -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    handle = weight.register_hook(lambda gradient: gradient * 5)
    put_back(take, Holder(weight=weight), handle.remove)
    weight.sum().backward()
    assert weight.grad.tolist() == [5, 5]


def test_what_members_of_an_enum_hold(take: Take) -> None:
    counted: Any = Mode.REST
    counted.rows = [1]

    def change() -> None:
        counted.rows.append(2)
        counted.count = 5

    put_back(take, Holder(mode=Mode.TRAIN, kind=Mode), change)
    assert counted.rows == [1]
    assert not hasattr(counted, "count")


@pytest.mark.long
def test_members_of_an_enum_stay_as_new_code_has_them(take: Take) -> None:
    member: Any = Mode.TRAIN

    def change() -> None:
        member.weight = 7

    put_back(take, Holder(mode=member), change, is_same_code=False)
    assert member.weight == 7
    del member.weight


def test_an_object_that_became_of_another_class(take: Take) -> None:
    inner = Holder(n=1)
    holder = Holder(inner=inner)
    put_back(take, holder, lambda: setattr(inner, "__class__", OtherHolder))
    assert type(inner) is Holder


@pytest.mark.long
def test_a_namespace_that_was_replaced_as_a_whole(take: Take) -> None:
    inner = Holder(n=1)
    namespace = inner.__dict__
    put_back(take, Holder(inner=inner), lambda: setattr(inner, "__dict__", {"n": 5}))
    assert inner.__dict__ is namespace
    assert inner.n == 1  # type: ignore[attr-defined]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.long
def test_a_quantized_tensor_ends_no_process() -> None:
    """`view` of one, by which all bits were compared, is a segmentation fault in torch."""
    values = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    put_back(keep, Holder(values=values), lambda: values.copy_(torch.zeros(3)))
    assert values.dequantize().tolist() == pytest.approx([1, 1, 1])
