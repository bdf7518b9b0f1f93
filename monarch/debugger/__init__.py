"""The console of calls that stand at a breakpoint; the calls themselves: runtime.debugger.

What to open:

    console           `monarch debug`: the console
    command_line      the parser of its commands
    screen            where it reads and writes: a terminal, or plain lines
    visit             how it asks procs and host agents
    attachment        the console at one held call
    holds_table       the table of the calls that stand, as `list` prints it
    running           commands for ranks that run
    breakpoints       the command `break`
    editor, adapter   an editor at all ranks, through debugpy; debugpy's adapter, kept to one user
    port_console      the console at a debug controller's port
"""
