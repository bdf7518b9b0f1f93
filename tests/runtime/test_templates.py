"""Which template a proc comes from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from monarch.runtime.hosts.templates import Templates
from monarch.wire.message import Command


class Template:
    def __init__(self) -> None:
        self.is_alive = True
        self.modules: list[str] = []

        self.learned: list[str] = []
        self.is_closed = False

    def learn(self, modules: Sequence[str], done: Any) -> None:
        self.learned += modules
        self.done = done

    def close(self) -> None:
        self.is_closed = True

    def preload(self, modules: Sequence[str], done: Any) -> None:
        self.modules += modules


def templates() -> tuple[Templates, list[Template]]:
    made: list[Template] = []

    def start(command: Command | None) -> Any:
        made.append(Template())
        return made[-1]

    return Templates(start), made


def test_one_template_for_each_set_of_modules() -> None:
    known, made = templates()
    assert known.template(["a", "b"]) is known.template(["b", "a"])
    assert known.template([]) is not known.template(["a"])
    assert len(made) == 3


def test_procs_come_from_what_the_host_imported_ahead() -> None:
    known, made = templates()
    ahead = known.ahead(["a", "b"])
    assert known.template([]) is ahead
    assert known.template(["a"]) is ahead
    assert known.template(["c"]) is not ahead
    assert [sorted(template.modules) for template in made] == [["a", "b"], ["c"]]


def test_a_template_that_died_is_made_again_with_all_of_its_modules() -> None:
    known, made = templates()
    known.ahead(["b", "a"])
    made[0].is_alive = False
    assert known.template([]) is made[1]
    assert made[1].modules == ["a", "b"]


def always(learned: Any) -> bool:
    return True


def test_procs_come_from_what_was_learned_when_that_is_ready_and_fits() -> None:
    known, made = templates()
    plain = known.maker(None, [], always)
    known.learn(plain, ["torch", "numpy"])
    assert made[1].learned == ["torch", "numpy"]
    assert known.maker(None, [], always) is plain
    made[1].done({})
    assert known.maker(None, [], always) is made[1]
    assert known.maker(None, [], lambda learned: False) is plain
    assert known.maker(None, ["other"], always) is made[2]
    assert made[1] in known.all
    known.learn(made[1], ["numpy"])
    assert len(made) == 3


def test_what_cannot_be_forked_from_is_learned_without() -> None:
    known, made = templates()
    plain = known.maker(None, [])
    known.learn(plain, ["good", "bad"])
    made[1].done({"bad": "it starts threads"})
    assert made[1].is_closed
    assert known.maker(None, [], always) is plain
    assert made[2].learned == ["good"]
    made[2].done({})
    known.learn(plain, ["bad"])
    assert known.maker(None, [], always) is made[2]
    assert len(made) == 3


def test_what_is_seen_while_a_template_learns_comes_with_the_next_and_the_older_goes_unused() -> (
    None
):
    known, made = templates()
    plain = known.maker(None, [])
    known.learn(plain, ["a"])
    known.learn(plain, ["b"])
    assert len(made) == 2
    made[1].done({})
    assert made[2].learned == ["a", "b"]
    made[2].done({})
    known.let_go([made[1], made[2]])
    assert not made[1].is_closed
    assert known.is_shared(made[1])
    known.let_go([made[2]])
    assert made[1].is_closed
    assert made[1] not in known.all
    assert not made[2].is_closed


def test_only_what_comes_from_the_common_template_teaches() -> None:
    known, made = templates()
    special = known.maker(None, ["special"])
    known.learn(special, ["torch"])
    assert len(made) == 1


def test_what_a_host_imports_ahead_is_in_what_has_learned_too() -> None:
    known, made = templates()
    known.learn(known.ahead(["a"]), ["b"])
    made[1].done({})
    assert known.maker(None, ["a"], always) is made[1]
    assert made[1].modules == ["a"]
    known.ahead(["c"])
    assert known.maker(None, ["a"], always) is not made[1]
