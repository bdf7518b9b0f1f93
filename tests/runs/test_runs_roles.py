"""How many procs each role of a recipe gets, and which."""

from __future__ import annotations

from typing import Any, cast

import pytest

from monarch.actor import ProcMesh
from monarch.errors import JobError
from monarch.runs.roles import chosen_roles, meshes_of, procs_on_host, read_roles

OWN = {"train": 2, "eval": 1}


def test_the_option_is_before_monarch_toml_and_that_before_the_recipe() -> None:
    assert chosen_roles("r", OWN, None, {}) == OWN
    assert chosen_roles("r", OWN, None, {"train": 6}) == {"train": 6, "eval": 1}
    assert chosen_roles("r", OWN, "eval=2,train=4", {"train": 6}) == {"train": 4, "eval": 2}
    assert list(chosen_roles("r", OWN, "eval=2", {})) == ["train", "eval"], "the recipe's order"


def test_a_recipe_without_roles_takes_no_option_and_leaves_monarch_toml_alone() -> None:
    assert chosen_roles("ddp", {}, None, {"train": 2}) == {}
    with pytest.raises(JobError, match=r"ddp has no roles: a recipe says which it has by ROLES = "):
        chosen_roles("ddp", {}, "train=2", {})


@pytest.mark.parametrize("text", ["", "train", "train=0", "train=-1", "train=2,train=3", "a=b"])
def test_what_is_no_role_is_told_with_an_example(text: str) -> None:
    with pytest.raises(JobError, match=r"not understood; say it as in --roles train=4,eval=2"):
        read_roles(text)


@pytest.mark.parametrize(
    ("option", "project", "where"),
    [("trian=2", {}, "--roles"), (None, {"trian": 2}, r"\[roles\] of monarch.toml")],
)
def test_a_misspelt_role_is_told(option: str | None, project: dict[str, int], where: str) -> None:
    with pytest.raises(JobError, match=f"{where}: r has the roles train, eval.*mean 'train'"):
        chosen_roles("r", OWN, option, project)


def test_all_hosts_have_as_many_procs() -> None:
    assert procs_on_host({"train": 4, "eval": 2}, 2) == 3
    with pytest.raises(JobError, match=r"are 6 procs, which 4 hosts cannot have in equal numbers"):
        procs_on_host({"train": 4, "eval": 2}, 4)


class Ranks:
    """A row of ranks, as a mesh is flattened and sliced."""

    def __init__(self, ranks: list[int]) -> None:
        self.ranks = ranks

    def __len__(self) -> int:
        return len(self.ranks)

    def flatten(self, name: str) -> Ranks:
        assert name == "rank"
        return self

    def slice(self, *, rank: slice) -> Ranks:
        return Ranks(self.ranks[rank])


def test_each_role_has_procs_of_its_own_in_the_order_of_ranks() -> None:
    procs = cast("ProcMesh", Ranks(list(range(8))))
    meshes: dict[str, Any] = meshes_of(procs, {"train": 4, "eval": 2})
    assert {name: mesh.ranks for name, mesh in meshes.items()} == {
        "train": [0, 1, 2, 3], "eval": [4, 5],
    }  # fmt: skip
    with pytest.raises(JobError, match="the roles train=9 take 9 procs, and there are 8"):
        meshes_of(procs, {"train": 9})
