"""``monarch top``: shows hosts, ranks and waits in a terminal, with Textual."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.widgets import DataTable, Footer, Input, Static

from monarch.view.live_view import COLUMNS, LiveView, cells_of, size_in_words
from monarch_sync.words import counted

_STYLES = {
    "failed": "red", "hangs": "red", "no answer": "red", "waiting": "yellow", "running": "green",
    "idle": "dim", "starting": "cyan", "held": "bold magenta",
}  # fmt: skip
_PADDING = 2
_BARS = "▁▂▃▄▅▆▇█"

Look = Callable[[], Sequence[Mapping[str, Any]]]
Act = Callable[[str, Sequence[str]], str]


def bars(values: Sequence[float], width: int) -> str:
    """Return values as a bar chart of one line."""
    recent = values[-width:]
    top = max(recent, default=0.0)
    return "".join(_BARS[int(value / top * 7) if top > 0 else 0] for value in recent)


class _Answer(ModalScreen[None]):
    """A box with text over the screen, until a key is pressed."""

    CSS = """
    _Answer { align: center middle; }
    _Answer > VerticalScroll {
        width: 90%; height: auto; max-height: 80%; border: round $accent; padding: 0 1;
        background: $surface;
    }
    _Answer Static { height: auto; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter", "dismiss", "close"),
    ]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(Text(self._text))


class MonarchTop(App[None]):
    """The app of ``monarch top``.

    ``look`` returns the hosts' answers; ``act`` applies a key's action to procs, by uid, and
    returns its output. Equal ranks are one line, odd ones come first.
    """

    CSS = """
    #head { height: auto; background: $boost; padding: 0 1; }
    #waits { height: auto; max-height: 6; padding: 0 1; color: $warning; }
    #filter { display: none; }
    DataTable { height: 1fr; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "ask('stacks')", "stacks"),
        Binding("p", "ask('profile')", "profile"),
        Binding("h", "ask('hang')", "hang"),
        Binding("l", "ask('log')", "log"),
        Binding("k", "ask('stop')", "stop"),
        Binding("r", "toggle_ranks", "ranks"),
        Binding("slash", "filter", "filter"),
        Binding("question_mark", "help", "help"),
        Binding("q", "quit", "quit"),
        # Also while a box is open; a second Ctrl-C has no effect.
        Binding("ctrl+c", "quit", "quit", show=False, priority=True),
    ]

    def __init__(self, look: Look, act: Act, title: str, seconds: float = 1.0) -> None:
        super().__init__()
        self._look = look
        self._act = act
        self._name = title
        #: Between two looks.
        self._seconds = seconds
        self._view = LiveView()
        #: What is shown; ``None`` before the first answer.
        self._snapshot: dict[str, Any] | None = None
        #: Whether each rank has a line, not each group of equal ranks.
        self._is_by_rank = False
        #: The text that shown lines contain; "" for all.
        self._filter = ""
        #: The procs of each line.
        self._uids: list[tuple[str, ...]] = []

    def compose(self) -> ComposeResult:
        yield Static("asking the hosts ...", id="head")
        yield DataTable(cursor_type="row", zebra_stripes=True)
        yield Static("", id="waits")
        yield Input(placeholder="part of a host, an actor or what it does", id="filter")
        yield Footer()

    def on_mount(self) -> None:
        table = self.query_one(DataTable)
        for name in COLUMNS:
            table.add_column(name, key=name)
        table.focus()
        self._refresh_now()
        self.set_interval(self._seconds, self._refresh_now)

    @work(thread=True, exclusive=True, group="look")
    def _refresh_now(self) -> None:
        try:
            looks = self._look()
        except Exception as error:
            self.call_from_thread(self._show_error, str(error))
            return
        snapshot = self._view.update(looks, time.time())
        self.call_from_thread(self._show, snapshot)

    def _show_error(self, text: str) -> None:
        self._below.query_one("#head", Static).update(Text(text, style="red"))

    @property
    def _below(self) -> Screen[Any]:
        """Return the screen below a box, whose figures are updated while the box is open."""
        return self.screen_stack[0]

    def _show(self, snapshot: dict[str, Any]) -> None:
        self._snapshot = snapshot
        self._below.query_one("#head", Static).update(self._head(snapshot))
        lines = [line for line in snapshot["waits"] if line != "nobody waits for anybody"]
        self._below.query_one("#waits", Static).update(Text("\n".join(lines[:5])))
        self._fill(snapshot)

    def _head(self, snapshot: Mapping[str, Any]) -> Text:
        counters = snapshot["counters"]
        clock = time.strftime("%H:%M:%S", time.localtime(snapshot["at"]))
        rates = [counters_then["rate"] for counters_then in self._view.history]
        head = Text(f"monarch top  {self._name}  ", style="bold")
        head.append(
            f"{counted(len(snapshot['hosts']), 'host')}  {counted(snapshot['num_ranks'], 'rank')}  "
            f"{counters['rate']:.0f} calls/s ",
            style="not bold",
        )
        end = f"  queue {counters['queue']}  {clock}"
        room = self.size.width - _PADDING - head.cell_len - len(end)
        head.append(bars(rates, max(1, min(16, room))), style="not bold cyan")
        head.append(end, style="not bold")
        for host in snapshot["hosts"][: max(1, self.size.height // 4)]:
            head.append("\n")
            head.append(_host_line(host))
        return head

    def _fill(self, snapshot: Mapping[str, Any]) -> None:
        table = self._below.query_one(DataTable)
        row_before, top = table.cursor_row, table.scroll_y
        table.clear()
        self._uids = []
        rows = snapshot["ranks"] if self._is_by_rank else snapshot["groups"]
        for row in rows:
            text = f"{row['host']} {row['actor']} {row['status']} {row['doing']}"
            if self._filter and self._filter not in text:
                continue
            self._uids.append(tuple(row.get("uids", ())) or (row["uid"],))
            table.add_row(*_cells(row))
        if self._uids:
            table.move_cursor(row=min(row_before, len(self._uids) - 1), scroll=False)
            table.scroll_to(y=top, animate=False)

    def action_toggle_ranks(self) -> None:
        self._is_by_rank = not self._is_by_rank
        if self._snapshot is not None:
            self._fill(self._snapshot)

    def action_filter(self) -> None:
        field = self.query_one("#filter", Input)
        field.display = True
        field.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self._filter = event.value
        self.query_one("#filter", Input).display = False
        self.query_one(DataTable).focus()
        if self._snapshot is not None:
            self._fill(self._snapshot)

    def action_ask(self, action: str) -> None:
        row = self.query_one(DataTable).cursor_row
        uids = self._uids[row] if 0 <= row < len(self._uids) else ()
        self._ask_aside(action, uids)

    @work(thread=True, group="ask")
    def _ask_aside(self, action: str, uids: Sequence[str]) -> None:
        try:
            text = self._act(action, uids)
        except Exception as error:
            text = str(error)
        self.call_from_thread(self._open, text)

    def action_help(self) -> None:
        self._open(_HELP)

    def _open(self, text: str) -> None:
        """Show a text in a box; an open box is replaced."""
        box = _Answer(text.strip() or "nothing")
        if isinstance(self.screen, _Answer):
            self.switch_screen(box)
        else:
            self.push_screen(box)


_HELP = """Lines are ranks that do the same; odd ones among their actor's come first.

up, down, page up, page down: choose a line
s  stacks of its ranks
p  profile them for 2 s (torch), into a file
h  who waits for whom
l  the last lines that they printed
k  stop what they run
r  a line for each rank, or for those alike
/  show only lines with a text; empty shows all
q  quit"""


def _host_line(host: Mapping[str, Any]) -> Text:
    if "error" in host:
        return Text(f"{host['name']}  {host['error']}", style="red")
    cpu = "-" if host["cpu"] is None else f"{100 * host['cpu']:.0f} %"
    line = f"{host['name']}  cpu {cpu}  mem {size_in_words(host['mem_used'])}"
    line += f"/{size_in_words(host['mem_total'])}"
    for gpu in host["gpus"]:
        line += f"  gpu{gpu['index']} {gpu.get('busy', '-')} %"
    return Text(f"{line}  {counted(host['num_procs'], 'proc')}", style="not bold")


def _cells(row: Mapping[str, Any]) -> list[Text]:
    host, actor, ranks, does, *numbers = cells_of(row)
    queue_style = "yellow" if row["queue"] > 100 else ""
    return [
        Text(host),
        Text(actor),
        Text(ranks, style="bold red" if row.get("is_odd") else ""),
        Text(does, style=_STYLES.get(row["status"], "")),
        *(
            Text(number, justify="right", style=queue_style if column == "queue" else "")
            for column, number in zip(COLUMNS[4:], numbers, strict=True)
        ),
    ]
