"""Commands, shells and ports on the hosts of a job.

What to open:

    commands            commands, a shell and forwarded ports, for programs
    exec_run, ranks     one command on many ranks; the ranks and their variables
    terminal_session    a person's terminal on a host
"""
