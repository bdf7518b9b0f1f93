"""The links of hosts in namespaces: what is measured over them is worth no more than they are."""

from __future__ import annotations

import pytest

from tests.job.netlab_switch import Link


def test_a_frame_takes_its_time_at_the_rate_and_the_delay() -> None:
    link = Link()
    link.rate, link.delay = 1000.0, 0.01
    assert link.when_through("up", 5.0, 100) == pytest.approx(5.11)
    assert link.when_through("up", 5.0, 100) == pytest.approx(5.21)  # behind the first


def test_what_comes_later_does_not_keep_what_leaves_now() -> None:
    link = Link()
    link.rate = 1000.0
    assert link.when_through("down", 8.0, 100) == pytest.approx(8.1)
    assert link.when_through("up", 5.0, 100) == pytest.approx(5.1)


def test_a_link_that_is_cut_loses_all() -> None:
    link = Link()
    link.loss = 1.0
    assert not any(link.when_through("up", 5.0, 100) for _ in range(100))
