"""How processes end, how that is noticed, and the work that is still done then.

What to open:

    unhandled_faults   the effect of an unhandled failure on the program
    end_program        ends the program, from any thread
    exit_status        ends it with status 1
    exit_words         an exit status in words
    process_group      which processes may be signalled, and what ends with its parent
    process_start      tells a process from a later one of the same number
    stacks             Python stacks of a process that holds its GIL
    late_thread        work on a thread, or here where an ending interpreter takes no new one

How the end of a process is noticed: `monarch/runtime/links/failure_detector.py`,
`monarch/runtime/hosts/host_link.py`.
"""
