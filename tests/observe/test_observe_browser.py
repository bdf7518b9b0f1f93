"""The page in a real browser: what it shows of runs and ranks that are made up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("duckdb")

from monarch.runs.page.report import write_report
from tests.observe.browser import PROGRAM, Browser
from tests.observe.page_world import a_run, end, hold, many_hosts, page_of, served
from tests.support import wait_for

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not PROGRAM, reason="needs chromium: tools/system.sh installs it"),
]


@pytest.fixture
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


def opened(browser: Browser, url: str) -> None:
    browser.open("about:blank")
    browser.errors.clear()
    browser.requested.clear()
    browser.open(url)
    browser.wait_for("document.body?.dataset.ready")
    browser.wait_for("!!document.querySelector('#metrics canvas')")


def text(browser: Browser, selector: str) -> str:
    return str(browser.run(f"document.querySelector('{selector}').innerText"))


def test_a_run_that_holds_is_seen_at_the_top_with_what_to_do(
    browser: Browser, tmp_path: Path
) -> None:
    hold(a_run(tmp_path))
    asked: list[Any] = []

    def act(what: str, about: Any) -> str:
        asked.append((what, list(about)))
        return "generation 6 is what 4 was"

    def locate(file: str) -> tuple[Path, Path]:
        return tmp_path / file, tmp_path

    looks = many_hosts(2, 2, idle=range(4))
    with served(page_of(tmp_path, lambda: looks, act, locate=locate)) as url:
        opened(browser, url)
        assert browser.run("location.hash") == ""  # The token does not stay to be seen.
        shown = text(browser, "#state")
        assert "NameError: name 'weightz' is not defined" in shown
        assert "task.py:8 · on rank 1" in shown
        assert "weights = torch.ones(10)" in shown  # around the line that raised
        assert browser.run("document.querySelector('#state a').href").endswith("task.py:8")
        assert text(browser, "#status") == "held"
        assert browser.run("document.title").startswith("✗ held")
        assert browser.run("document.querySelectorAll('#grid .failed').length") == 1
        assert text(browser, "#generations li.now.failed").startswith("5 failed: task.py:8")
        browser.run("document.querySelector('#state button.main').click()")
        wait_for(lambda: asked)
        assert asked[0][0] == "rollback"
        browser.wait_for("document.querySelector('#answer').innerText.includes('is what 4 was')")
        assert browser.errors == []
        assert all(
            one.startswith(("http://127.0.0.1", "data:", "about:")) for one in browser.requested
        )


@pytest.mark.parametrize(("num_hosts", "per_host"), [(1, 1), (32, 8)])
def test_one_rank_and_many_fit_a_narrow_page_and_a_wide_one(
    browser: Browser, tmp_path: Path, num_hosts: int, per_host: int
) -> None:
    a_run(tmp_path, 400, edits=[100], ranks=num_hosts * per_host)
    looks = many_hosts(num_hosts, per_host)
    with served(page_of(tmp_path, lambda: looks)) as url:
        opened(browser, url)
        for width in (400, 1600):
            browser.resize(width, 1000)
            assert browser.run("document.documentElement.scrollWidth") <= width
            # Charts take a new width with the next frame. Until then they don't widen the page.
            assert width * 3 // 4 == browser.run(
                "(() => { const main = document.querySelector('main'), style = main.style;"
                f" style.width = '{width * 3 // 4}px'; const wide = main.scrollWidth;"
                " style.width = ''; return wide; })()"
            )
        assert text(browser, "#status") == "training"
        cells = browser.run("document.querySelectorAll('#grid button').length")
        assert cells == num_hosts * per_host
        assert f"runs a call: {cells}" in text(browser, "#legend")
        # The diff of an edit is shown where its mark is pointed at.
        browser.run(
            "(() => { const chart = view.charts.get('metrics loss'), over = chart.plot.over,"
            " box = over.getBoundingClientRect(); over.dispatchEvent(new MouseEvent('mousemove',"
            " {clientX: box.left + chart.plot.valToPos(100, 'x'), clientY: box.top + 9})); })()"
        )
        assert "label_smoothing=0.2" in text(browser, "#tip")
        browser.run("who.value = '0'; who.onchange()")
        browser.wait_for("document.querySelector('#lines').innerText.includes('rank 0 has read')")
        browser.run("words.value = 'shard 3'; words.oninput()")
        assert text(browser, "#lines") == "rank 0 has read shard 3"
        assert browser.errors == []


def test_runs_that_have_ended_have_their_reason_and_are_compared(
    browser: Browser, tmp_path: Path
) -> None:
    for seed, status in enumerate(("finished", "failed")):
        end(a_run(tmp_path, 300, seed=seed, rate=0.001 * (seed + 1)), status, "failed: no disk")
    with served(page_of(tmp_path, None)) as url:
        opened(browser, url)
        assert "no disk" in text(browser, "#state")
        assert "To go on: monarch run ddp" in text(browser, "#state")
        assert browser.run("document.querySelector('#ranks').hidden")
        table = text(browser, "#runs table")
        assert "learning_rate" in table
        browser.run("document.querySelector('#runs input:not(:disabled)').click()")
        browser.wait_for("document.querySelectorAll('#metrics .first .u-series').length === 3")
        browser.run("document.querySelector('#runs tr:not(.shown) button').click()")
        browser.wait_for("document.querySelector('#status').innerText === 'finished'")
        assert browser.errors == []


def test_a_report_is_the_same_page_in_one_file(browser: Browser, tmp_path: Path) -> None:
    run = a_run(tmp_path, edits=range(10, 1900, 10))
    end(run)
    write_report(run)
    browser.open("about:blank")
    browser.errors.clear()
    browser.requested.clear()
    browser.open((run.path / "report.html").as_uri())
    browser.wait_for("!!document.querySelector('#metrics canvas')")
    assert text(browser, "#status") == "finished"
    assert browser.run("document.querySelector('#metrics h3 button').innerText") == "log"
    for width in (400, 1280):
        browser.resize(width, 1000)
        assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run("document.documentElement.scrollHeight") < 3500
    assert all(one.startswith(("file:", "data:", "about:")) for one in browser.requested)
    assert browser.errors == []
