"""What ranks print at about the same time comes to as few lines as say it."""

from __future__ import annotations

import pytest

from monarch.core.log_aggregation import LineSource
from monarch.core.log_bursts import Burst, PrintedLine, condensed, is_alarm, without_actor
from monarch.core.log_text import Style, run_text

ASSERTION = (
    "../aten/src/ATen/native/cuda/Loss.cu:245: nll_loss_forward_reduce_cuda_kernel_2d: block: "
    "[0,0,0], thread: [{thread},0,0] Assertion `t >= 0 && t < n_classes` failed."
)


def told(*lines: tuple[int, str], name: str = "titan") -> list[str]:
    said = condensed(PrintedLine(LineSource(name, rank), text) for rank, text in lines)
    return [f"{one.label} | {text}" for one in said for text in one.text]


def test_a_kernels_assertion_is_one_line_and_how_many_more() -> None:
    lines = [(0, ASSERTION.format(thread=number)) for number in range(32)]
    assert told(*lines) == [f"titan 0 | {lines[0][1]}", "titan 0 | 31 more like it"]


def test_one_of_all_ranks_is_told_once() -> None:
    lines = [(rank, ASSERTION.format(thread=32 * rank + n)) for n in range(32) for rank in range(8)]
    assert told(*lines) == [
        f"titan | {lines[0][1]} (on ranks 0 to 7)",
        "titan | 31 more like it",
    ]


def test_a_warning_of_every_rank_is_told_once_with_the_ranks() -> None:
    warning = ["/lib/x.py:3: UserWarning: foo is slow", "  warnings.warn("]
    lines = [(rank, text) for rank in range(8) for text in warning]
    expected = [f"titan | {warning[0]} (on ranks 0 to 7)", f"titan | {warning[1]}"]
    assert told(*lines) == expected
    between = [(rank, text) for text in warning for rank in reversed(range(8))]
    assert told(*between) == expected


def test_a_warning_may_have_other_numbers_on_each_rank() -> None:
    lines = [(rank, f"[W1126 20:11:0{rank} x.cpp:42] [Rank {rank}] slow") for rank in (0, 1, 2, 5)]
    assert told(*lines) == [f"titan | {lines[0][1]} (on ranks 0 to 2, 5)"]


def test_other_lines_with_other_numbers_stay() -> None:
    """What differs by rank may be what a person looks for."""
    lines = [(rank, f"rank {rank} has seen {rank * 7} samples") for rank in range(3)]
    assert told(*lines) == [f"titan {rank} | {text}" for rank, text in lines]


def test_few_lines_in_a_row_that_are_alike_stay() -> None:
    lines = [(0, f"shard {number}") for number in range(3)]
    assert told(*lines) == [f"titan 0 | {text}" for _, text in lines]


def test_a_traceback_is_not_torn() -> None:
    trace = [
        "Traceback (most recent call last):",
        '  File "a.py", line 1, in f',
        "    return forward(*args)",
        '  File "a.py", line 2, in g',
        "    return forward(*args)",
        "ValueError: of rank {rank}",
    ]
    lines = [(rank, text.format(rank=rank)) for rank in (0, 1) for text in trace]
    assert told(*lines) == [
        f"titan | {trace[0]} (on ranks 0 and 1)",
        *(f"titan | {text}" for text in trace[1:-1]),
        "titan 0 | ValueError: of rank 0",
        "titan 1 | ValueError: of rank 1",
    ]


def test_meshes_are_told_apart() -> None:
    said = condensed(PrintedLine(LineSource(name, 0), "Warning: x") for name in "ab")
    assert [one.label for one in said] == ["a 0", "b 0"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "[actor=<root>.<monarch_recipes.titan.recipe.TitanTrainer titan{'procs': 0/1}>] hello",
            "hello",
        ),
        (
            "[titan] x - root - INFO - [actor=<root>.<a.B b>.<c.D d{'p': 1/2}>] y",
            "[titan] x - root - INFO - y",
        ),
        ("[actor=mine] stays", "[actor=mine] stays"),
        ("no name", "no name"),
    ],
)
def test_the_actor_is_named_by_the_label_alone(text: str, shown: str) -> None:
    assert without_actor(text) == shown


def test_what_is_an_alarm() -> None:
    assert is_alarm("x.py:1: FutureWarning: y")
    assert is_alarm(ASSERTION)
    assert not is_alarm("step 1, loss 2")


def test_lines_fit_the_terminal() -> None:
    plain, coloured = Style(False, is_of_run=True), Style(True, is_of_run=True)
    assert run_text("titan 0", ["hello", ""], plain) == "titan 0 | hello\ntitan 0 | \n"
    assert run_text("titan 0", ["hello"], coloured) == "\x1b[36mtitan 0 |\x1b[0m hello\n"
    words = " ".join(["twelve-chars"] * 6)
    lines = run_text("titan 0", [words], Style(False, 40, is_of_run=True)).splitlines()
    assert all(len(line) <= 40 for line in lines)
    assert [line[:10] for line in lines] == ["titan 0 | ", *["        | "] * (len(lines) - 1)]
    assert "".join(line[10:] for line in lines).split() == words.split()
    # What has no place to break is broken, and nothing of it is lost.
    lines = run_text("titan 0", ["x" * 100], Style(False, 40, is_of_run=True)).splitlines()
    assert "".join(line[10:] for line in lines) == "x" * 100
    # Where nobody looks at it through a terminal, it is whole.
    assert run_text("titan 0", [words], plain).count("\n") == 1
    # A terminal too narrow for anything.
    assert "x" * 3 in run_text("titan 0", ["xxx"], Style(False, 8, is_of_run=True))


def test_lines_wait_for_what_others_print_beside_them() -> None:
    burst = Burst()
    one, other = LineSource("titan", 0), LineSource("titan", 1)
    assert burst.deadline is None
    burst.add(one, ["hello"], 10.0)
    assert burst.deadline == pytest.approx(10.3)
    burst.add(one, ["there"], 10.2)
    assert burst.deadline == pytest.approx(10.3), "who prints on and on is shown all the same"
    burst.add(other, ["UserWarning: x"], 10.25)
    assert burst.deadline == pytest.approx(11.05)
    assert burst.wants(other, 1)
    assert [said.lines for said in burst.take()] == [("hello", "there"), ("UserWarning: x",)]
    assert burst.deadline is None


def test_a_flood_does_not_wait_for_its_end() -> None:
    burst = Burst()
    burst.add(LineSource("titan", 0), ["Warning: x"] * 10_000, 1.0)
    assert burst.deadline == 1.0
    assert [said.text for said in burst.take()] == [("Warning: x", "9999 more like it")]


def test_what_a_rank_prints_stays_in_order_beside_what_all_are_told_of() -> None:
    burst = Burst()
    ranks = [LineSource("titan", rank) for rank in range(2)]
    assert not burst.wants(ranks[0], 1), "who prints alone is shown at once"
    for rank in ranks:
        burst.add(rank, ["UserWarning: x"], 1.0)
        assert burst.wants(rank, 1)
        burst.add(rank, ["printed", *["alike"] * 5], 1.0, stream=1)
        burst.add(rank, ["UserWarning: y"], 1.0)
    told = [(said.stream, said.label, said.text) for said in burst.take()]
    assert told == [
        (2, "titan", ("UserWarning: x (on ranks 0 and 1)",)),
        (1, "titan 0", ("printed", *["alike"] * 5)),
        (2, "titan", ("UserWarning: y (on ranks 0 and 1)",)),
        (1, "titan 1", ("printed", *["alike"] * 5)),
    ]
