"""The debugger in a proc and in a host agent; its console: `monarch/debugger`.

What to open:

    door                             a proc's door for debuggers; `breakpoint()`
    holds                            the held calls of a process
    held_call, held_pdb, held_text   one held call; its debugger; that one's input and output
    hold_book                        the held calls that a host agent or a client knows of
    looks                            questions to a running proc
    break_places                     breakpoints by file and line
    stop_at                          stops an actor that runs
    editor_session                   debugpy, for an editor
    environment                      reading and changing the environment of a process
    later_procs                      variables and breakpoints for procs that start later
"""
