"""Waits that take long say what they are for."""

from __future__ import annotations

import pytest

from monarch.job import ProcessJob, SlurmJob
from monarch.job.waiting import shown_elsewhere, told_if_long
from tests.support import wait_for


def test_a_long_wait_says_what_for_and_a_short_one_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with told_if_long(lambda: "2 hosts of Slurm job 7", seconds=60.0):
        pass
    assert capsys.readouterr().err == ""
    said = ""

    def is_told() -> bool:
        nonlocal said
        said += capsys.readouterr().err
        return said.count("waiting for 2 hosts of Slurm job 7") >= 2

    with told_if_long(lambda: "2 hosts of Slurm job 7", seconds=0.01):
        wait_for(is_told)
    first, second, *_ = said.splitlines()
    assert first.startswith("monarch: waiting for 2 hosts of Slurm job 7")
    assert second.endswith("s so far")


def test_where_a_spinner_shows_it_no_line_does(capsys: pytest.CaptureFixture[str]) -> None:
    looked: list[str] = []

    def what() -> str:
        looked.append("")
        return "it"

    with shown_elsewhere(), told_if_long(what, seconds=0.001):
        pass
    assert (capsys.readouterr().err, looked) == ("", [])


def test_each_kind_of_job_says_what_it_waits_for() -> None:
    assert ProcessJob({"a": 2})._waits_for() == "the hosts of a process job"
    assert SlurmJob({"a": 2, "b": 1})._waits_for() == "3 hosts of a slurm job"
