"""What of a project file is asked about, once; and what is not."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monarch.cli import trust
from monarch.cli.allocation.init import init
from monarch.cli.allocation.trust_command import trust as monarch_trust
from monarch.cli.project import JobSection, load_project, noted_job
from monarch.cli.trust import is_trusted, powers_of, require_trust
from monarch.errors import JobError
from monarch.job import DEFAULT_JOB_PATH, SSHJob, job_loads
from monarch.job.job import job_from_client
from monarch.job.places import Place
from monarch.job.state_folder import state_path

SSH = """
[job]
kind = "ssh"
hosts = { trainers = ["gpu1"] }
[job.ssh]
args = ["-F", "ssh_config"]
"""


@pytest.fixture(autouse=True)
def asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MONARCH_TRUST")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Writes the project file of a folder that is the current one."""
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")

    def write(text: str) -> None:
        Path("monarch.toml").write_text(text)

    return write


def agreed() -> bool:
    return is_trusted(load_project(None))


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("", []),
        ("[job]\nhosts = { a = 3 }\n[workspace]\ndirs = ['.']", []),
        ("[job]\nkind = 'local'\n", []),
        ("[job]\n[job.ssh]\nargs = ['-oProxyCommand=x']", []),  # Not of this kind: without effect.
        ("[job]\npreload = ['evil']", ["preload"]),
        ("[job]\nenv = { LD_PRELOAD = 'evil.so' }", ["env"]),
        (SSH, ["kind", "hosts", "ssh.args"]),
        ("[job]\nkind = 'slurm'\n[job.slurm]\npython = './py'", ["kind", "slurm.python"]),
        ("[job]\nkind = 'slurm'\n[job.slurm]\nargs = ['--wrap=x']", ["kind", "slurm.args"]),
        ("[job]\nkind = 'slurm'\n[job.slurm]\npartition = 'x'\nport = 1", ["kind"]),
        ("[job]\nkind = 'skypilot'\n[job.skypilot]\nsetup = 'x'", ["kind", "skypilot.setup"]),
        (
            "[job]\nkind = 'kubernetes'\n[job.kubernetes]\nkubeconfig = 'k'\nimage = 'i'",
            ["kind", "kubernetes.image", "kubernetes.kubeconfig"],
        ),
        ("[job]\nkind = 'ray'\n[job.ray]\naddress = 'x'", ["kind", "ray.address"]),
    ],
)
def test_which_keys_run_something(text: str, keys: list[str], write: Callable[[str], None]) -> None:
    write(text)
    assert list(powers_of(load_project(None)).keys) == keys
    assert agreed() == (not keys)


def test_a_new_key_of_a_job_is_asked_about_unless_it_is_said_to_be_harmless() -> None:
    sections = {"ssh", "slurm", "kubernetes", "ray", "skypilot", "lightning"}
    names = {field.name for field in dataclasses.fields(JobSection)}
    assert names == sections | {"kind", "hosts", "env", "preload"}
    keys = {
        field.name for name in sections for field in dataclasses.fields(getattr(JobSection(), name))
    }
    assert keys >= set(trust._HARMLESS)
    assert not {"args", "python", "gateway", "setup", "kubeconfig"} & set(trust._HARMLESS)


def test_trust_holds_until_what_is_run_is_edited(write: Callable[[str], None]) -> None:
    Path("ssh_config").write_text("Host gpu1\n")
    write(SSH)
    assert not agreed()
    monarch_trust(None, False, False)
    assert agreed()
    write(SSH + "port = 4\n[workspace]\nignore = ['data/']\n")
    assert agreed(), "nothing that is run was edited"
    write(SSH.replace("ssh_config", "other_config"))
    assert not agreed()
    write(SSH.replace("gpu1", "gpu2"))
    assert not agreed()
    write(SSH)
    assert agreed()
    Path("ssh_config").write_text("Host gpu1\nProxyCommand evil\n")
    assert not agreed(), "a file that is named says what is run"


def test_trust_is_of_one_file(write: Callable[[str], None], tmp_path: Path) -> None:
    write(SSH)
    monarch_trust(Path("."), False, False)
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "monarch.toml").write_text(SSH)
    assert not is_trusted(load_project(str(copy / "monarch.toml")))
    # What was agreed to for one is not what was agreed to for another, wherever it lies.
    (note,) = (state_path() / "trusted").iterdir()
    theirs = trust._note_of(Path(os.path.realpath(copy / "monarch.toml")))
    theirs.write_bytes(note.read_bytes())
    theirs.chmod(0o600)
    assert not is_trusted(load_project(str(copy / "monarch.toml")))


def test_trust_that_was_not_noted_here_does_not_count(write: Callable[[str], None]) -> None:
    write(SSH)
    monarch_trust(None, False, False)
    (note,) = (state_path() / "trusted").iterdir()
    fields = json.loads(note.read_text())
    write(SSH.replace("gpu1", "gpu2"))
    note.write_text(json.dumps(fields | {"digest": powers_of(load_project(None)).digest}))
    assert not agreed()
    for damage in ("", "[", "[" * 100_000):
        note.write_text(damage)
        assert not agreed()


def test_listed_and_taken_back(
    write: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    write(SSH)
    monarch_trust(None, False, False)
    capsys.readouterr()
    monarch_trust(None, True, False)
    assert capsys.readouterr().out == f"{Path('monarch.toml').resolve()}\n"
    monarch_trust(None, False, True)
    assert not agreed()
    with pytest.raises(JobError, match="nothing to take back"):
        monarch_trust(None, False, True)


def test_at_a_terminal_it_is_asked_once(
    write: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    write(SSH + 'gateway = "gw\\u001b[2J"\n')
    answers = [False, True]
    monkeypatch.setattr(trust, "is_somebody_there", lambda: True)
    monkeypatch.setattr("click.confirm", lambda *_, **__: answers.pop(0))
    with pytest.raises(JobError, match="is not trusted, so nothing of it was run"):
        require_trust(load_project(None))
    shown = capsys.readouterr().out
    assert 'ssh.args = ["-F", "ssh_config"]' in shown
    assert "\x1b" not in shown, "what a stranger wrote does not reach the terminal as it is"
    require_trust(load_project(None))
    require_trust(load_project(None))
    assert answers == []


def test_where_nobody_can_be_asked_it_is_refused(
    write: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(SSH)
    with pytest.raises(JobError, match=r"ssh\.args = (?s:.*)monarch trust .*MONARCH_TRUST=1"):
        require_trust(load_project(None))
    monkeypatch.setenv("MONARCH_TRUST", "1")
    require_trust(load_project(None))
    assert not (state_path() / "trusted").exists(), "that is for this command"


def _note_ssh_job() -> None:
    """The state of an allocation that `monarch apply` has brought up."""
    job = load_project(None).make_job()
    job.dump(DEFAULT_JOB_PATH)


def test_commands_come_from_the_project_file_as_it_is_now(write: Callable[[str], None]) -> None:
    write(SSH)
    monarch_trust(None, False, False)
    _note_ssh_job()
    write(SSH.replace("ssh_config", "other_config") + "gateway = 'gw'\n")
    with pytest.raises(JobError, match="you have not agreed to that"):
        noted_job()
    monarch_trust(None, False, False)
    job = noted_job()
    assert isinstance(job, SSHJob)
    assert (job.ssh_args, job.gateway) == (["-F", "other_config"], "gw")
    assert not job.can_run(load_project(None).make_job()), "it was made as something else"
    assert isinstance(again := job_loads(job.dumps()), SSHJob)
    assert again.ssh_args == ["-F", "ssh_config"]
    Path("monarch.toml").unlink()
    with pytest.raises(JobError, match="is gone, which says how"):
        noted_job()


def test_a_project_that_was_moved_is_trusted_anew(
    write: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(SSH)
    monarch_trust(None, False, False)
    _note_ssh_job()
    if not Place.of(tmp_path).birth:
        pytest.skip("this file system does not tell when a folder was made")
    os.rename(tmp_path / "project", tmp_path / "moved")
    monkeypatch.chdir(tmp_path / "moved")
    with pytest.raises(JobError, match=r"moved/monarch\.toml"):
        noted_job()
    monarch_trust(None, False, False)
    assert isinstance(noted_job(), SSHJob)


def test_what_a_client_hands_over_needs_no_project_file(write: Callable[[str], None]) -> None:
    write(SSH)
    job = load_project(None).make_job()
    assert job_loads(job.dumps()).project_file == "monarch.toml"
    handed = job_from_client(job.dumps())
    assert isinstance(handed, SSHJob)
    assert (handed.project_file, handed.names) == ("", {"trainers": ["gpu1"]})


def test_what_monarch_init_wrote_is_trusted(write: Callable[[str], None]) -> None:
    init(Path("new"), 2)
    project = load_project("new/monarch.toml")
    assert powers_of(project).keys == {"preload": ["torch"]}
    assert is_trusted(project)
