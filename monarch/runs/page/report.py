"""A run's ``report.html``: the dashboard's page at one moment, in one file that needs no other."""

from __future__ import annotations

from monarch.runs.page.page_files import page_with
from monarch.runs.page.run_data import run_data
from monarch.runs.record.folder import RunFolder


def write_report(run: RunFolder) -> None:
    """Write the run's report from the data in its folder, over an older report.

    It links to no file of this machine, since it may be sent to somebody else.
    """
    run.write_text("report.html", page_with(run_data(run)))
