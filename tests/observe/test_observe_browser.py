"""The page in a real browser, of a run that goes on."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.runs_folder import RunsFolder
from tests.observe.browser import PROGRAM, Browser
from tests.support import Program

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not PROGRAM, reason="needs chromium: tools/system.sh installs it"),
]


def test_a_page_of_what_runs_and_of_what_has_ended(
    tmp_path: Path, program: Callable[..., Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunsFolder(tmp_path)
    monkeypatch.chdir(tmp_path)
    stop = tmp_path / "go"

    def command(*arguments: str) -> Program:
        return program(
            f"import sys; sys.argv = {['monarch', *arguments]!r}\n"
            "from monarch.cli.main import main; main()"
        )

    run = command("run", "counting.py", "num_steps=3", f"wait_for={stop}")
    folder.wait_for_steps(2)
    page = command("dashboard", "--port", "0")
    url = "http" + page.line("http")
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/#t=\S+", url)
    home = tmp_path / "browser"
    home.mkdir()
    with Browser(home) as browser:
        browser.open(url)
        browser.wait_for("document.body?.dataset.ready")
        assert browser.run("location.hash") == ""  # The token does not stay to be seen.
        browser.wait_for("!!document.querySelector('#groups tbody tr')")
        assert "counter" in browser.run("document.querySelector('#groups').textContent")
        assert browser.run("document.querySelectorAll('#cells i').length") == 2
        browser.wait_for("!!document.querySelector('#loss canvas')")
        assert browser.run("document.querySelector('#metric').value") == "loss"
        browser.wait_for("document.querySelector('#log').textContent.includes('adding')")
        browser.run("document.querySelector('#ask').requestSubmit()")
        browser.wait_for("document.querySelector('#answer').textContent.includes('add')")
        browser.run("document.querySelector('[data-act=hang]').click()")
        browser.wait_for("document.querySelector('dialog').open")
        browser.run("document.querySelector('dialog button').click()")
        for width in (1400, 420):
            browser.resize(width, 1500)
            _click_through(browser)
            assert browser.run("document.documentElement.scrollWidth") <= width
        assert browser.errors == []
        foreign = [u for u in browser.requested if not u.startswith(("http://127.0.0.1", "data:"))]
        assert [u for u in foreign if u != "about:blank"] == []
        (tmp_path / "shots").mkdir()
        browser.picture(tmp_path / "shots/page.png")
        assert os.path.getsize(tmp_path / "shots/page.png") > 10_000
        stop.touch()
        assert run.wait() == 0
        page.send_signal(signal.SIGINT)
        assert page.wait() == 0
        assert page.errors == []
        browser.wait_for("document.querySelector('#live').textContent.includes('not answer')")

    ended = command("dashboard", "--run", "latest", "--port", "0")
    home = tmp_path / "other"
    home.mkdir()
    with Browser(home) as browser:
        browser.open("http" + ended.line("http"))
        browser.wait_for("document.body?.dataset.ready")
        assert browser.run("document.querySelector('#facts').textContent") == (
            "of runs that have ended"
        )
        browser.wait_for("!!document.querySelector('#loss canvas')")
        browser.run("document.querySelector('#ask').requestSubmit()")
        browser.wait_for("document.querySelector('#answer').textContent.includes('counter')")
    ended.send_signal(signal.SIGINT)
    assert ended.wait() == 0


def _click_through(browser: Browser) -> None:
    """Whatever can be clicked or chosen, but for what ends the run."""
    for act in ("stacks", "hang", "profile", "log"):
        browser.run(f"document.querySelector('[data-act={act}]').click()")
        browser.wait_for("document.querySelector('dialog').open")
        assert browser.run("document.querySelector('#said').textContent")
        browser.run("document.querySelector('dialog button').click()")
    browser.run("document.querySelector('#groups tbody tr').click()")
    assert browser.run("document.querySelectorAll('tr.picked').length") == 1
    for num_curves in (0, 1):
        browser.run("document.querySelector('#runs input').click()")
        # The legend has a line for the steps, too.
        browser.wait_for(
            f"document.querySelectorAll('#loss .u-series').length === 1 + {num_curves}"
        )
        assert browser.run("document.querySelector('#runs input').checked") == bool(num_curves)
    for name in ("total", "loss"):
        browser.run(f"metric.value = '{name}'; metric.onchange()")
        browser.wait_for("!!document.querySelector('#loss canvas')")
    browser.run("rank.value = 'rank1'; rank.onchange()")
    browser.wait_for("document.querySelector('#log').textContent.includes('adding')")
    browser.run("sql.value = 'SELECT 42 AS answer'; ask.requestSubmit()")
    browser.wait_for("document.querySelector('#answer td')?.textContent === '42'")
