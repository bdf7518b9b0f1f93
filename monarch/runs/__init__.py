"""A run of a recipe: its folder, what it writes there, and what is read from there later.

What to open, by what is to be changed:

- what a run writes down, and shows: `record.py`, `rows.py`, `report.py`, `monarch/cli/display.py`
- which process may run in a run's folder: `session.py`
- files that are written whole or not at all: `whole_file.py`
- what a run says of code that changed: `code.py`
- which command goes on with which run: `folder.py`
- what ranks have printed, written and read: `logs.py`
- what is done when a rank is lost: `attempts.py`, `restarts.py`, `ranks.py`, `recovery.py`
- what a run does when its allocation is ended, replaced, or short of a host; how its end is told:
  `allocation.py`; `end_text.py`
- what happens when new code fails as it runs; how the state of actors is copied, and how ranks are
  brought back; what is told of it: `holding.py`, `edits.py`; `trial.py`, `state_copies.py`;
  `hold_report.py`
- what happens when a checkpoint cannot be saved: `saving.py`
"""

TYPE_CHECKING = False  # as `typing` has it, which takes a while to import
if TYPE_CHECKING:
    from monarch.runs.deaths import Deaths
    from monarch.runs.holding import Holding
    from monarch.runs.live_config import LiveConfig
    from monarch.runs.record import Display, LineDisplay, Record

__all__ = ["Deaths", "Display", "Holding", "LineDisplay", "LiveConfig", "Record"]

_HOMES = {
    "Deaths": "deaths",
    "Display": "record",
    "Holding": "holding",
    "LineDisplay": "record",
    "LiveConfig": "live_config",
    "Record": "record",
}


def __getattr__(name: str) -> object:
    # Imported when asked for: to look at runs that are over takes nothing of the runtime.
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value
