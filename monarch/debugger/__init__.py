"""The console for held calls, which stopped at a breakpoint or an error. The holds:
runtime.debugger.

What to open:

    console           `monarch debug`: the console
    command_line      the parser of its commands
    screen            its input and output: a terminal, or plain lines
    visit             its questions to hosts and procs
    attachment        the console at one held call
    holds_table       the table of held calls, as `list` prints it
    running           commands for ranks that run
    breakpoints       the command `break`
    editor, adapter   an editor at all ranks, through debugpy; debugpy's adapter, kept to one user
    port_console      the console at a debug controller's port
"""
