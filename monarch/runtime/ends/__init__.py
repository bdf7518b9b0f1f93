"""How processes end, how that is noticed, and the work that is still done then.

What to open:

    unhandled_faults   the effect of an unhandled failure on the program
    end_program        ends the program, from any thread
    exit_status        ends it with status 1
    exit_words         an exit status in words
    process_group      which processes may be signalled, and what ends with its parent
    process_start      the start of a process, which distinguishes it from a later one of its pid
    stacks             Python stacks of a process that holds its GIL
    late_thread        work on a thread, or on this one if an ending interpreter starts no more

How the end of a process is noticed: `monarch/runtime/links/failure_detector.py`,
`monarch/runtime/hosts/host_link.py`.
"""
