"""Which checkpoint `resume` and `init_from` name, and what is said where they name none."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

from monarch.config_file import ConfigError
from monarch.runs.recover.checkpoint_choice import check_choices, checkpoint_named, chosen_for


def saved(path: Path, at: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", "x")
    os.utime(path, (at, at))
    return path


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """Two runs; the first has kept its best, the second has saved a lower step last."""
    made = tmp_path / "runs"
    for number, name in enumerate(("ddp-20260101-000000", "ddp-20260102-000000"), 1):
        (made / name / "checkpoints").mkdir(parents=True)
        (made / name / "command").write_text("monarch run ddp\n")
        os.utime(made / name / "command", (number, number))
    first, second = sorted(made.iterdir())
    saved(first / "checkpoints/best/step-00000007.pt", 5)
    saved(first / "checkpoints/step-00000009.pt", 6)
    saved(second / "checkpoints/step-00000020.pt", 7)
    saved(second / "checkpoints/step-00000010.pt", 8)
    return made


@pytest.mark.parametrize(
    ("wanted", "step"),
    [
        ("latest", 10),
        ("ddp-20260101", 9),
        ("ddp-20260101-000000", 9),
        ("ddp-20260101/best", 7),
        ("best", 7),
        ("{base}/ddp-20260101-000000", 9),
        ("{base}/ddp-20260101-000000/", 9),
        ("{base}/ddp-20260101-000000/best", 7),
        ("{base}/ddp-20260101-000000/checkpoints", 9),
        ("{base}/ddp-20260101-000000/checkpoints/best", 7),
        ("{base}/ddp-20260102-000000/checkpoints/step-00000020.pt", 20),
    ],
)
def test_a_file_a_run_or_the_best_of_one_is_named(base: Path, wanted: str, step: int) -> None:
    path = checkpoint_named(wanted.format(base=base), "resume", base=base)
    assert path.name == f"step-{step:08}.pt"
    assert path.is_absolute()


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ("ddp-2025", "there is no run 'ddp-2025'.*Say a checkpoint's path, a run's name, or best"),
        ("ddp-20260102/best", r"no best checkpoint of ddp-20260102-000000 \(extras.keep_best"),
        ("{base}/ddp-20260101-000000/checkpoints/step-00000001.pt", "a file that is not there"),
        ("nowhere/step-00000001.pt", "a file that is not there"),
        ("{base}/damaged.pt", "is damaged, or no checkpoint"),
        ("{base}/empty", "finds no checkpoint of the folder"),
    ],
)
def test_what_names_no_checkpoint_is_told_before_anything_starts(
    base: Path, wanted: str, why: str
) -> None:
    (base / "damaged.pt").write_bytes(b"x")
    (base / "empty").mkdir()
    with pytest.raises(ConfigError, match=why) as caught:
        checkpoint_named(wanted.format(base=base), "init_from", base=base)
    assert caught.value.key == "init_from"


def test_the_best_of_no_run_is_told(base: Path) -> None:
    (base / "ddp-20260101-000000/checkpoints/best/step-00000007.pt").unlink()
    with pytest.raises(ConfigError, match=r"has kept one: train with extras\.keep_best"):
        checkpoint_named("best", "init_from", base=base)


def test_a_path_on_the_disk_of_another_host_is_left_to_that() -> None:
    path = "/another/disk/step-00000001.pt"
    assert str(checkpoint_named(path, "resume")) == path


def test_the_run_that_asks_is_not_meant_itself(base: Path) -> None:
    own = base / "ddp-20260103-000000"
    own.mkdir()
    (own / "command").write_text("monarch run ddp resume=latest\n")
    for wanted in ("latest", "ddp-2026"):
        resume, _ = chosen_for(own, wanted, None, base=base)
        assert resume.endswith("ddp-20260102-000000/checkpoints/step-00000010.pt")
    _, init_from = chosen_for(own, "auto", "latest", base=base)
    assert str(init_from).endswith("ddp-20260102-000000/checkpoints/step-00000010.pt")


def test_a_run_that_has_saved_goes_on_from_there(base: Path) -> None:
    own, other = base / "ddp-20260102-000000", "ddp-20260101"
    assert chosen_for(own, other, None, base=base) == ("auto", None)
    assert chosen_for(own, "never", None, base=base) == ("never", None)
    mine = str(own / "checkpoints/step-00000020.pt")
    assert chosen_for(own, mine, None, base=base) == (mine, None), "to go back in it"


def test_only_one_of_both_keys_may_be_given(base: Path) -> None:
    check_choices("auto", None, base=base)
    check_choices("latest", None, base=base)
    check_choices("never", "best", base=base)
    with pytest.raises(ConfigError, match="give one of them"):
        check_choices("latest", "best", base=base)
    with pytest.raises(ConfigError, match="names no checkpoint and no run"):
        check_choices("auto", "nothing", base=base)
