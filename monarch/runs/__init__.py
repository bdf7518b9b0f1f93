"""A run of a recipe: its folder, and the code that writes and reads it.

What to open:

    record/              the record of a run: its folder, rows, logs, report
    page/                the page of a run, which the dashboard serves and a report freezes
    recover/             ranks that fail, hang or die; checkpoints
    hold/                new code on trial, copies of the state, and holds
    recipe/              recipes, and plain scripts that run as one
    session              one session of a run, and which process may use a folder
    attempts             restarts when ranks are lost
    roles                parts of a mesh: some procs train, others evaluate
    detached             runs whose client is on a host
    carry                the script that sends a host's run folders here
    receive_state        the script that keeps a job's state on a host, for a detached run
    end_text             how a run ended, in words
"""

TYPE_CHECKING = False  # as `typing` has it, which takes a while to import
if TYPE_CHECKING:
    from monarch.runs.hold.holding import Holding
    from monarch.runs.record.live_config import LiveConfig
    from monarch.runs.record.record import Display, LineDisplay, Record
    from monarch.runs.recover.deaths import Deaths

__all__ = ["Deaths", "Display", "Holding", "LineDisplay", "LiveConfig", "Record"]

_HOMES = {
    "Deaths": "recover.deaths",
    "Display": "record.record",
    "Holding": "hold.holding",
    "LineDisplay": "record.record",
    "LiveConfig": "record.live_config",
    "Record": "record.record",
}


def __getattr__(name: str) -> object:
    # Imported when asked for: to look at runs that are over takes nothing of the runtime.
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value
