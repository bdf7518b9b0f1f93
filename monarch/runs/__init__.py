"""A run of a recipe: its folder, what it writes there, and what is read from there later."""

TYPE_CHECKING = False  # as `typing` has it, which takes a while to import
if TYPE_CHECKING:
    from monarch.runs.deaths import Deaths
    from monarch.runs.holding import Holding
    from monarch.runs.lines import LineDisplay
    from monarch.runs.live_config import LiveConfig
    from monarch.runs.record import Display, Record

__all__ = ["Deaths", "Display", "Holding", "LineDisplay", "LiveConfig", "Record"]

_HOMES = {
    "Deaths": "deaths",
    "Display": "record",
    "Holding": "holding",
    "LineDisplay": "lines",
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
