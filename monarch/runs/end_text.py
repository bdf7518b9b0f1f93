"""Describes how a run ended: why, which files are kept, how to continue, and where it is."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from monarch.runs.record.error_text import in_words
from monarch.runs.record.folder import TRACEBACK, RunFolder, shell_line
from monarch.runs.recover.allocation import AllocationLost
from monarch.runs.recover.saving import shown


def end_text(
    run: RunFolder,
    why: str | BaseException = "",
    width: int | None = None,
    *,
    is_dev: bool = False,
) -> str:
    """Return the text at the end of every run; ``why`` is the error that ended it, if any. Commands
    and paths in it can be copied from a terminal of this ``width``. If ``is_dev``, the command
    is ``monarch dev``, which starts hosts itself.

    Call it after the end has been recorded in the run's folder.
    """
    status, step = run.status, _last_step(run)
    after = f" after step {step}" if step else ""
    lines = [in_words(why) if isinstance(why, BaseException) else why or f"{status}{after}"]
    saved, elsewhere = _last_saved(run), run.saved_elsewhere
    if run.is_of_script:
        pass  # It keeps its own checkpoints.
    elif saved is not None:
        lines += _checkpoint_lines(saved, "", width)
    elif elsewhere is not None:
        lines += _checkpoint_lines(elsewhere, " on the disk of its host", width)
    elif status != "finished":
        lines.append(
            f"its checkpoints are in {shown(run.checkpoint_dir)}"
            if run.has_checkpoint
            else "there is no checkpoint yet"
        )
    newest = saved or elsewhere
    lost_from = 1 if newest is None else newest[1] + 1
    is_known = newest is not None or not run.has_checkpoint
    if status != "finished" and is_known and step >= lost_from and not run.is_of_script:
        lost = f"step {step} is" if step == lost_from else f"steps {lost_from} to {step} are"
        lines.append(f"{lost} in no checkpoint, and will be made again")
    if status != "finished" and run.command:
        command = ["monarch", "dev", *run.command[2:]] if is_dev else run.command
        needs_hosts = isinstance(why, AllocationLost) and not is_dev
        start = "to go on: " if run.has_checkpoint else "to begin again: "
        start += "monarch apply, then " if needs_hosts else ""
        line = f"{start}{shell_line(command)}"
        if width is None or len(line) <= width:
            lines.append(line)
        else:
            lines += [start.rstrip(), *_folded(command, width)]
    if run.has_traceback:
        lines.append(f"the whole traceback: {run.path / TRACEBACK}, or --traceback")
    lines.append(f"all about it is in {run.path}")
    return "\n".join(lines)


def _last_step(run: RunFolder) -> int:
    """Return the last step of the run that is known: that of the last metrics, or of the last
    checkpoint if it is later; 0 if there is neither.

    Metrics are not reported for every step, so a checkpoint may be later.
    """
    saved = [event["step"] for event in run.events() if event["kind"] == "saved"]
    steps = [*(row["step"] for row in run.metrics()[-1:]), *saved[-1:]]
    return max(steps, default=0)


def _last_saved(run: RunFolder) -> tuple[Path, int] | None:
    """Return the newest recorded checkpoint that exists, and its step; ``None`` if none does."""
    for event in reversed(run.events()):
        if event["kind"] == "saved" and "step" in event:
            path = Path(event.get("path") or "-")
            if path.exists():
                return shown(path), event["step"]
    return None


def _checkpoint_lines(saved: tuple[Path, int], host: str, width: int | None) -> Iterator[str]:
    """Yield one or two lines about a checkpoint; the path is never broken, so that it can be
    copied."""
    path, step = saved
    line = f"the last checkpoint is {path}{host}, after step {step}"
    if width is None or len(line) <= width:
        yield line
    else:
        yield f"the last checkpoint, after step {step}, is{host}"
        yield f"  {path}"


def _folded(words: Sequence[str], width: int) -> Iterator[str]:
    """Yield a command in lines that a shell reads as one, broken between its words."""
    line = "  "
    for word in map(shlex.quote, words):
        if line.strip() and len(line) + len(word) + len(" \\") > width:
            yield f"{line}\\"
            line = "    "
        line += f"{word} "
    yield line.rstrip()
