"""Which hosts run several states of one workspace, and whom a call would meet there."""

from __future__ import annotations

from monarch.runtime.code_states import UNBORN, CodePush, CodeState, CodeStates, Laggards

MESH = ["h0", "h1", "h2"]


def _root() -> CodeStates:
    states = CodeStates()
    states.is_root = True
    return states


def _push(
    states: CodeStates, generation: int, digest: str, hosts: list[str], family: str = "w"
) -> CodePush:
    """As the root does it; others are given the change that it has made."""
    change = CodePush(generation, digest, family, hosts, states.left_by(family, hosts))
    states.switched(change)
    return change


def test_a_push_to_a_part_leaves_the_rest_behind_until_they_are_one_again() -> None:
    states = _root()
    _push(states, 1, "a", MESH)
    assert states.is_one
    _push(states, 2, "b", ["h1"])
    assert not states.is_one
    laggards = states.laggards(MESH, UNBORN)
    assert laggards == Laggards(
        {"h0": CodeState(1, "a"), "h2": CodeState(1, "a")}, CodeState(2, "b")
    )
    assert states.laggards(["h0", "h2"], UNBORN) is None
    assert states.laggards(["h1"], UNBORN) is None
    _push(states, 3, "b", ["h0"])
    assert states.laggards(["h0", "h1"], UNBORN) is None, "the same state, whatever its number"
    assert states.laggards(MESH, UNBORN) is not None
    _push(states, 4, "a", ["h0", "h1"])
    assert states.is_one, "back to what the third has had all the time"


def test_hosts_with_workspaces_of_their_own_have_nothing_to_agree_on() -> None:
    states = _root()
    _push(states, 1, "a", ["h0"], "one")
    _push(states, 2, "b", ["h1"], "another")
    assert states.laggards(MESH, UNBORN) is None
    _push(states, 3, "c", ["h0"], "one")
    assert states.is_one
    _push(states, 4, "d", ["h0", "h1"], "one")
    _push(states, 5, "e", ["h1"], "another")
    laggards = states.laggards(MESH, UNBORN)
    assert laggards is not None, "they have been given one workspace"
    assert set(laggards.hosts) == {"h0"}


def test_one_workspace_in_two_states_divides_hosts_that_got_it_one_by_one() -> None:
    states = _root()
    _push(states, 1, "a", ["h0"])
    _push(states, 2, "b", ["h1"])
    laggards = states.laggards(MESH, UNBORN)
    assert laggards is not None
    assert set(laggards.hosts) == {"h0"}
    assert laggards.wanted == CodeState(2, "b")


def test_what_was_pushed_before_a_mesh_was_made_says_nothing_of_it() -> None:
    states = _root()
    _push(states, 1, "a", MESH)
    _push(states, 2, "b", ["h0"])
    states.brought("h1", "b")
    assert states.laggards(["h0", "h1"], UNBORN) is None
    # Others do not hear that a host was brought; the mesh tells them.
    heard = CodeStates()
    heard.inherit(_divided_at_two())
    assert heard.laggards(["h0", "h1"], UNBORN) is not None
    assert heard.laggards(["h0", "h1"], CodeState(2, "b")) is None
    change = _push(states, 3, "c", ["h1"])
    heard.switched(change)
    assert heard.laggards(["h0", "h1"], CodeState(2, "b")) is not None


def _divided_at_two() -> list:  # type: ignore[type-arg]
    states = _root()
    _push(states, 1, "a", MESH)
    _push(states, 2, "b", ["h0"])
    return list(states.to_inherit())


def test_who_is_told_of_pushes_knows_what_the_root_knows() -> None:
    states, told = _root(), CodeStates()
    for generation, digest, hosts in (
        (1, "a", MESH), (2, "b", ["h0"]), (3, "c", ["h1"]), (4, "c", ["h0"]), (5, "d", MESH),
        (6, "e", ["h2", "h1"]),
    ):  # fmt: skip
        told.switched(_push(states, generation, digest, hosts))
        assert told.laggards(MESH, UNBORN) == states.laggards(MESH, UNBORN)
        born = CodeStates()
        born.inherit(states.to_inherit())
        assert born.laggards(MESH, UNBORN) == states.laggards(MESH, UNBORN)


def test_a_push_that_is_taken_back_has_divided_nobody() -> None:
    states = _root()
    _push(states, 1, "a", MESH)
    change = CodePush(2, "b", "w", ["h0"], states.left_by("w", ["h0"]))
    states.expect(change)
    assert states.laggards(MESH, UNBORN) is None, "not yet"
    assert states.crossing(MESH, UNBORN) == 2
    assert states.crossing(["h1", "h2"], UNBORN) == 0
    before = states.switched(change)
    states.go_back(before)
    states.expect_nothing()
    assert states.is_one
    assert states.crossing(MESH, UNBORN) == 0


def test_hosts_that_were_found_with_one_state_belong_together() -> None:
    states = _root()
    states.found("h0", 7, "a")
    states.found("h1", 7, "a")
    states.found("h2", 0, "empty")
    _push(states, 8, "b", ["h0"])
    states.found("h0", 8, "b")
    laggards = states.laggards(MESH, UNBORN)
    assert laggards is not None
    assert laggards.hosts == {"h1": CodeState(7, "a")}
