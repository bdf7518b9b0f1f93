"""Parses lines typed at ``monarch_dbg>``: upstream's commands, unchanged, and ours. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

from monarch.core.rank_sets import BadRanks, RanksType, parse_set

PROMPT = "monarch_dbg> "

BANNER = (
    "\n\n************************ MONARCH DEBUGGER ************************\n"
    "Enter 'help' for a list of commands.\n"
    "Enter 'list' to show all active breakpoints.\n\n"
)

HELP = """\
monarch_dbg commands:
  list                        held calls, and where (l)
  attach NAME RANK            the debugger of one of them (a); `detach` comes back here
  cast NAME ranks(...) CMD    one line to the debuggers of several: n, p x, !x = 1
  continue                    clear all breakpoints, and let all go on (c)
  where [RANKS]               what every rank does, and whom it waits for
  diff EXPR [in RANKS]        an expression on all held ranks, equal answers together
  stop RANKS | all            hold running ranks at their next line
  break FILE:LINE [if COND] [ranks RANKS]    stop there, on ranks that start later, too;
  break [clear [NUMBER]]      list breakpoints, or take them away
  stacks [RANKS] [--locals]   where the threads of ranks are
  together                    each line goes to all held calls, until `alone`
  redo [RANKS] [now]          end held calls here, take the saved code, and run them again
  abort RANKS | all           end their process groups: who waits in a collective gets an error
  help                        this (h)
  quit                        leave; held calls stay held (q)
RANKS: 3, 0-3,7, ::2, host=2,gpus=0-3, all, and as in `cast`, ranks(0,1,2), ranks(dim=0:4)
In a debugger: n, s, c, p, up, down, where, l, b and the others of pdb, `redo`, and `detach`.
"""


class Typed(NamedTuple):
    """A parsed line: ``name`` is one of the command words; ``text`` are its arguments as typed.

    ``error`` says what is wrong with the line; then all else is empty.
    """

    name: str
    actor: str = ""
    ranks: RanksType = 0
    text: str = ""
    is_flagged: bool = False
    error: str = ""


_SHORT = {"l": "list", "a": "attach", "c": "continue", "h": "help", "q": "quit", "?": "help"}
_ALONE = ("list", "continue", "help", "quit", "together", "alone", "detach")
_NAME = r"[-_a-zA-Z0-9]+"
COMMANDS = (
    "list", "attach", "cast", "continue", "where", "diff", "stop", "break", "stacks", "together",
    "alone", "redo", "abort", "help", "quit",
)  # fmt: skip


def parse_line(line: str) -> Typed:
    """Parse a line that a person typed; errors are in ``Typed.error``."""
    line = line.strip()
    word, _, arguments = line.partition(" ")
    name, arguments = _SHORT.get(word, word), arguments.strip()
    try:
        if name in _ALONE:
            return Typed(name) if not arguments else _bad(f"`{name}` takes no arguments")
        if name == "attach":
            match = re.fullmatch(rf"({_NAME})\s+([0-9]+)", arguments)
            if match is None:
                return _bad("attach NAME RANK, as in `attach trainer 3`")
            return Typed("attach", actor=match[1], ranks=int(match[2]))
        if name == "cast":
            return _cast(arguments)
        if name in ("where", "stop", "redo", "abort"):
            if name in ("stop", "abort") and not arguments:
                return _bad(f"{name} RANKS, as in `{name} 5`, or `{name} all`")
            if name == "redo" and arguments.split()[-1:] == ["now"]:
                ranks_before = arguments[: -len("now")].strip()
                return Typed(name, ranks=parse_set(ranks_before or "all"), is_flagged=True)
            return Typed(name, ranks=parse_set(arguments or "all"))
        if name == "stacks":
            words = arguments.split()
            flags = [flag for flag in words if flag.startswith("--")]
            if set(flags) - {"--locals"}:
                return _bad("stacks [RANKS] [--locals]")
            ranks = parse_set(" ".join(word for word in words if word not in flags) or "all")
            return Typed(name, ranks=ranks, is_flagged=bool(flags))
        if name == "diff":
            text, _, ranks_text = arguments.rpartition(" in ")
            if text and _is_set(ranks_text):
                return Typed(name, text=text, ranks=parse_set(ranks_text))
            if not arguments:
                return _bad("diff EXPR")
            return Typed(name, text=arguments, ranks=parse_set("all"))
        if name == "break":
            return Typed(name, text=arguments)
    except BadRanks as error:
        return _bad(str(error))
    return _bad(f"no such command: {word!r}. `help` lists them")


def _cast(arguments: str) -> Typed:
    usage = "cast NAME ranks(...) CMD, as in `cast trainer ranks(0,1) p self.x`, or cast RANKS CMD"
    match = re.fullmatch(rf"({_NAME})\s+(ranks\([^)]*(?:\([^)]*\)[^)]*)*\))\s*([\w!].*)", arguments)
    if match is not None:
        return Typed("cast", match[1], parse_set(match[2]), match[3])
    match = re.fullmatch(rf"(?:({_NAME})\s+)?(\S+)\s+([\w!].*)", arguments)
    if match is None:
        return _bad(usage)
    if match[1] and not _is_set(match[2]):
        # The first word was the ranks, and the rest is the command.
        match = re.fullmatch(r"()(\S+)\s+([\w!].*)", arguments)
        assert match is not None
    return Typed("cast", match[1] or "", parse_set(match[2]), match[3])


def _is_set(text: str) -> bool:
    try:
        parse_set(text)
    except BadRanks:
        return False
    return True


def _bad(problem: str) -> Typed:
    return Typed("", error=f"Error parsing input: {problem}\n")


class BreakOrder(NamedTuple):
    """The parts of ``break FILE:LINE [if COND] [ranks RANKS]``."""

    file: str
    line: int
    condition: str
    ranks: str


def parse_break(text: str) -> BreakOrder:
    """Parse the arguments of ``break``. Raises ``ValueError`` with what was expected."""
    match = re.fullmatch(
        r"(?P<file>\S+):(?P<line>[0-9]+)(?:\s+if\s+(?P<if>.+?))?(?:\s+ranks\s+(?P<ranks>\S+))?",
        text,
    )
    if match is None:
        raise ValueError("break FILE:LINE [if CONDITION] [ranks RANKS], as in `break train.py:42`")
    condition = match["if"] or ""
    if condition:
        try:
            compile(condition, "<condition>", "eval", dont_inherit=True)
        except SyntaxError as error:
            raise ValueError(f"{condition!r} is no condition: {error.msg}") from None
    ranks = match["ranks"] or "all"
    parse_set(ranks)
    return BreakOrder(match["file"], int(match["line"]), condition, ranks)
