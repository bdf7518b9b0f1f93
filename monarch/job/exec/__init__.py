"""Commands, shells and ports on the hosts of a job.

What to open:

    commands            commands, a shell and forwarded ports, for programs
    exec_run, ranks     one command on many ranks; which ranks, and what each is told
    terminal_session    a person's terminal on a host
"""
