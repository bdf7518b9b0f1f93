"""What programs import from ``monarch.tools.config``."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

import monarch_sync
from monarch.tools.config import CondaEnvironment, Config, Workspace


def test_a_workspace_is_the_same_at_each_address() -> None:
    module = importlib.import_module("monarch.tools.config.workspace")
    assert module.Workspace is Workspace is monarch_sync.Workspace
    environment = module.ACTIVE_CONDA_ENV
    assert Workspace(env=environment) == Workspace.null()
    assert (Workspace(env=environment).env, Workspace.null().env) == (environment, None)


def test_a_workspace_can_be_copied_into_one_folder(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "deep").mkdir(parents=True)
        (tmp_path / name / "deep" / f"{name}.py").write_text(name)
    out = tmp_path / "new" / "out"
    out.mkdir(parents=True)
    (out / "kept").touch()
    Workspace({tmp_path / "one": "", str(tmp_path / "two"): "lib/two"}).merge(out)
    found = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert found == {"kept", "deep/one.py", "lib/two/deep/two.py"}


class Roles:
    """As much of a torchx ``AppDef`` as is looked at."""

    def __init__(self, **env: str) -> None:
        self.env = env
        self.roles = [self]


@pytest.mark.parametrize(
    ("had", "gets"),
    [
        (
            {},
            {
                "WORKSPACE_DIR": "${img_root}/workspace",
                "PYTHONPATH": "${img_root}/workspace/:${img_root}/workspace/lib/two",
                "CONDA_DIR": "${img_root}/conda",
            },
        ),
        (
            {"WORKSPACE_DIR": "/w", "PYTHONPATH": "/w/lib/two:/mine", "CONDA_DIR": "/c"},
            {"WORKSPACE_DIR": "/w", "PYTHONPATH": "/w/lib/two:/mine:/w/", "CONDA_DIR": "/c"},
        ),
    ],
)
def test_roles_of_a_job_find_the_copy(had: dict[str, str], gets: dict[str, str]) -> None:
    roles = Roles(**had)
    Workspace({"one": "", "two": "lib/two"}, env=CondaEnvironment()).set_env_vars(roles)
    assert roles.env == gets


def test_without_an_environment_none_is_named() -> None:
    roles = Roles()
    Workspace(["one"]).set_env_vars(roles)
    assert "CONDA_DIR" not in roles.env


def test_a_workspace_that_is_not_there_is_not_copied(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    workspace = Workspace([tmp_path / "one", tmp_path / "two"])
    with pytest.raises(monarch_sync.WorkspaceMissing, match="two"):
        workspace.merge(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_environment_has_a_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDA_PREFIX", "/the/active/one")
    assert CondaEnvironment().conda_prefix == "/the/active/one"
    assert CondaEnvironment("/another").conda_prefix == "/another"
    assert CondaEnvironment("/another") == CondaEnvironment("/another") != CondaEnvironment()
    monkeypatch.delenv("CONDA_PREFIX")
    with pytest.raises(AssertionError, match="no conda environment is active"):
        CondaEnvironment().conda_prefix


def test_a_launch_takes_a_folder_in_the_older_way(tmp_path: Path) -> None:
    workspace = Workspace({tmp_path: ""})
    assert Config(workspace=workspace).workspace == workspace
    assert Config().workspace == Workspace.null()
    with pytest.warns(FutureWarning, match="Workspace"):
        assert Config(workspace=str(tmp_path)).workspace == workspace
    for nothing in ("", None):
        with pytest.warns(FutureWarning, match=r"Workspace\.null\(\)"):
            assert Config(workspace=nothing).workspace == Workspace.null()
