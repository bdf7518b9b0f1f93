"""A run of a recipe: its folder, what it writes there, and what is read from there later."""

from monarch.runs.deaths import Deaths
from monarch.runs.lines import LineDisplay
from monarch.runs.live_config import LiveConfig
from monarch.runs.record import Display, Record

__all__ = ["Deaths", "Display", "LineDisplay", "LiveConfig", "Record"]
