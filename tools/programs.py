"""Run test suites of programs that were written for Monarch against this project, file by file.

    make programs MONARCH_TREE=... TORCHSTORE_TREE=... TORCHFORGE_TREE=... TITAN_TREE=...

A tree is the path of a checkout: nothing is fetched, and a suite without its tree is not run. Each
file of tests has a pytest of its own, which runs outside of the tree, so that ``import monarch``
finds this project. Processes that a file of tests leaves behind are ended after it.

``PROGRAMS_PYTHON`` is a Python that has the project and what these suites import besides
(pytest-asyncio, pytest-timeout, pytest-unordered, expecttest, torchx, ...). ``PROGRAMS_OUT`` is the
folder for results: a junit file and the output of each file of tests, and ``table.md``, which has
the counts, the peak memory of all processes of a file together, and the first line of each failure.
``PROGRAMS_ONLY`` is a pattern of the files to run: ``titanrl_loop/*``, ``test_keys.py``.

TitanRL needs vLLM, and torchtitan an accelerator: ``tools/titanrl`` has a ``vllm`` of a few hundred
lines, which samples from torchtitan's model on a CPU, and has torchtitan compute there. Its
``test_loop.py`` runs TitanRL's training program, from rollouts to weights that are synced, on a
small task (``vowels.py``); all that it runs besides is TitanRL's own code, as it is. It imports
spmd_types 0.2.3, torch_checkpointing, grain, renderers, transformers, math-verify and
flash-linear-attention.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

import psutil

OUTCOMES = ("passed", "failed", "error", "skipped")
# In place of vLLM, and a run of TitanRL's whole loop with it.
TITANRL = str(Path(__file__).parent / "titanrl")


@dataclass(frozen=True)
class Program:
    """A suite of tests of another project.

    ``tree_variable`` is the environment variable that names its checkout, and ``tests`` is where
    its tests are in that. ``on_path`` are folders of the checkout that its tests import from.
    ``needs`` are the variables of other checkouts, each with what is imported from it.
    """

    name: str
    tree_variable: str
    tests: str
    on_path: tuple[str, ...] = ()
    needs: tuple[tuple[str, str], ...] = ()
    options: tuple[str, ...] = ()
    test_timeout_seconds: int = 150
    file_timeout_seconds: int = 1200


PROGRAMS = (
    Program("monarch", "MONARCH_TREE", "python/tests", on_path=(".", "python/tests")),
    Program("torchstore", "TORCHSTORE_TREE", "tests", on_path=(".",)),
    Program("torchforge", "TORCHFORGE_TREE", "tests/unit_tests", on_path=("src", ".")),
    Program(
        "titanrl",
        "TITAN_TREE",
        "torchtitan/experiments/rl/tests",
        on_path=(".", TITANRL),
        needs=(("TORCHSTORE_TREE", "."),),
    ),
    Program(
        "titanrl_loop",
        "TITAN_TREE",
        TITANRL,
        on_path=(".", TITANRL),
        needs=(("TORCHSTORE_TREE", "."),),
        # Not with the settings of this project's own tests.
        options=("-s", f"--config-file={os.devnull}", f"--rootdir={TITANRL}"),
        test_timeout_seconds=1200,
        file_timeout_seconds=3600,
    ),
)


@dataclass
class FileCounts:
    """The outcome of one file of tests.

    ``ended`` says why pytest ended without finishing the file; it is empty if pytest finished.
    """

    file: str
    seconds: float = 0.0
    gigabytes: float = 0.0
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    failures: list[tuple[str, str]] = field(default_factory=list)
    ended: str = ""


def read_junit(file: str, text: str) -> FileCounts:
    """Return the counts of a junit file. A case that fails twice, the second time as it is torn
    down, is counted once."""
    result = FileCounts(file)
    outcomes: dict[str, str] = {}
    for case in ElementTree.fromstring(text).iter("testcase"):
        result.seconds += float(case.get("time") or 0)
        name = f"{case.get('classname')}::{case.get('name')}"
        outcome = "passed"
        for tag, word in (("skipped", "skipped"), ("error", "error"), ("failure", "failed")):
            note = case.find(tag)
            if note is not None:
                outcome = word
                if word != "skipped":
                    lines = (note.get("message") or note.text or "").strip().splitlines()
                    result.failures.append((name, lines[0] if lines else ""))
        if outcomes.get(name, "passed") in ("passed", "skipped"):
            outcomes[name] = outcome
    for outcome in outcomes.values():
        result.counts[outcome] += 1
    return result


def table(program: str, results: list[FileCounts]) -> str:
    """Return the counts by file, and the failures, as Markdown."""
    total = {word: sum(result.counts[word] for result in results) for word in OUTCOMES}
    lines = [f"## {program}", "", f"| file | {' | '.join(OUTCOMES)} | seconds | GB | |"]
    lines.append("|---" * (len(OUTCOMES) + 4) + "|")
    for result in results:
        cells = [result.file, *(str(result.counts[word]) for word in OUTCOMES)]
        cells += [f"{result.seconds:.0f}", f"{result.gigabytes:.1f}", result.ended]
        lines.append(f"| {' | '.join(cells)} |")
    most = max((result.gigabytes for result in results), default=0.0)
    counts = " | ".join(str(total[word]) for word in OUTCOMES)
    lines.append(f"| all | {counts} | | {most:.1f} | |")
    lines.append("")
    for result in results:
        for name, reason in result.failures:
            lines.append(f"- {result.file} `{name.split('::')[-1]}`: {reason[:200]}")
    return "\n".join(lines) + "\n"


def ended_words(status: int) -> str:
    """Return why pytest did not finish, from its exit status; "" if it finished."""
    if status in (0, 1, 5):
        return ""
    return "interrupted" if status == 2 else f"pytest's exit status {status}"


def run_file(
    program: Program, trees: Mapping[str, Path], file: Path, python: str, out: Path
) -> FileCounts:
    """Run one file of tests with a pytest in a session of its own (``setsid``).

    Returns the counts of its outcomes.
    """
    tree = trees[program.tree_variable]
    name = str(file.relative_to(tree / program.tests))
    stem = out / name.replace("/", "-").removesuffix(".py")
    stem.parent.mkdir(parents=True, exist_ok=True)
    junit = stem.with_suffix(".xml")
    junit.unlink(missing_ok=True)
    paths = [str(tree / folder) for folder in program.on_path]
    paths += [str(trees[variable] / folder) for variable, folder in program.needs]
    with tempfile.TemporaryDirectory(prefix="programs-") as elsewhere:
        arguments = [python, "-m", "pytest", str(file), "-q", "-p", "no:cacheprovider"]
        arguments += ["--import-mode=importlib", f"--junitxml={junit}"]
        arguments += [f"--timeout={program.test_timeout_seconds}", *program.options]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        status, gigabytes = _run_session(
            arguments, Path(elsewhere), environment, stem, program.file_timeout_seconds
        )
    ended = ended_words(status) if status is not None else "did not end in time"
    if junit.exists():
        result = read_junit(name, junit.read_text())
    else:
        result = FileCounts(name)
        ended = ended or "no counts"
    result.ended = ended
    result.gigabytes = gigabytes
    return result


def _run_session(
    arguments: list[str],
    folder: Path,
    environment: dict[str, str],
    stem: Path,
    timeout_seconds: float,
) -> tuple[int | None, float]:
    """Run a command whose output goes to a file beside ``stem``.

    Return its exit status, ``None`` if it took too long, and the most memory that it and its
    descendants had together, in GB. What it started and left in its session ends with it.
    """
    with stem.with_suffix(".txt").open("wb") as output:
        child = subprocess.Popen(
            arguments,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        with _peak_memory(child.pid) as peak:
            try:
                status = child.wait(timeout_seconds)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        return status, peak[0]


@contextlib.contextmanager
def _peak_memory(pid: int) -> Iterator[list[float]]:
    """Sample the memory of a process and its descendants; the list holds the peak, in GB.

    Memory that processes share is counted once (PSS). A descendant whose parent ended is no longer
    counted.
    """
    peak = [0.0]
    is_over = threading.Event()

    def sample() -> None:
        while not is_over.wait(1.0):
            peak[0] = max(peak[0], _memory_of(pid))

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    try:
        yield peak
    finally:
        is_over.set()
        sampler.join()


def _memory_of(pid: int) -> float:
    """Return the memory in GB that a process and its descendants have now; 0 if it has ended."""
    total = 0
    with contextlib.suppress(psutil.NoSuchProcess):
        top = psutil.Process(pid)
        for process in (top, *top.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                total += process.memory_full_info().pss
    return total / 1e9


def test_files(tree: Path, program: Program, only: str) -> Iterator[Path]:
    """Yield the files of tests, by name; ``only`` is a pattern of PROGRAM/PATH, or of the path."""
    folder = tree / program.tests
    for file in sorted(folder.rglob("test_*.py")):
        path = str(file.relative_to(folder))
        if any(fnmatch.fnmatch(name, only) for name in (path, f"{program.name}/{path}")):
            yield file


def main() -> int:
    python = os.environ.get("PROGRAMS_PYTHON", sys.executable)
    out = Path(os.environ.get("PROGRAMS_OUT", "build/programs")).absolute()
    only = os.environ.get("PROGRAMS_ONLY") or "*"
    variables = [program.tree_variable for program in PROGRAMS]
    trees = {name: Path(os.environ[name]).absolute() for name in variables if os.environ.get(name)}
    if not trees:
        print(f"Give the path of a checkout: {', '.join(dict.fromkeys(variables))}.")
        return 2
    texts: list[str] = []
    num_bad = 0
    for program in PROGRAMS:
        needed = {program.tree_variable, *(variable for variable, _ in program.needs)}
        if not needed <= trees.keys():
            continue
        results: list[FileCounts] = []
        for file in test_files(trees[program.tree_variable], program, only):
            began = time.monotonic()
            result = run_file(program, trees, file, python, out / program.name)
            results.append(result)
            num_bad += result.counts["failed"] + result.counts["error"] + bool(result.ended)
            counts = " ".join(f"{word} {result.counts[word]}" for word in OUTCOMES)
            took = f"{time.monotonic() - began:.0f} s {result.gigabytes:.1f} GB"
            print(f"{program.name} {result.file}: {counts} {took} {result.ended}", flush=True)
        texts.append(table(program.name, results))
    (out / "table.md").write_text("\n".join(texts))
    print("\n".join(texts))
    return 1 if num_bad else 0


if __name__ == "__main__":
    sys.exit(main())
