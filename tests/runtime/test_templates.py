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
