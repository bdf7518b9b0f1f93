"""The ``monarch`` command.

A command's options and help are in `commands`, or the `*_commands` of its group; what it does is in
the file that these import.

What to open:

    entry, main                      the start of the command; how its errors reach a person
    commands, host_commands,         arguments, options and help of all commands
    runs_commands, debug_commands
    options, volume                  options of several commands; `--quiet` and `--verbose`
    confirm, keys                    questions to a person; keys that are pressed while a command
                                     runs
    project                          `monarch.toml`: its keys, and the job that it describes
    trust, trust_command             what a project file may have run; `monarch trust`
    init, found_code                 `monarch init`, and what it finds in a project
    allocation                       `monarch apply`, `status`, `kill`, `host`
    contexts                         `monarch context`
    users                            the programs that use an allocation, and the question before it
                                     ends
    hosts, host_table                `monarch hosts`, and its table
    host_logs                        `monarch logs`
    exec                             `monarch exec`, `shell`, `forward`
    hosts_here                       the hosts and programs that run for a folder now
    env, debug                       `monarch env`; `monarch debug`
    doctor                           `monarch doctor`; the checks on a host: `monarch/job/doctor`
    run, run_target                  `monarch run`; the hosts that a run goes on
    recipe                           `monarch recipe`
    runs                             `monarch runs`
    slow_runs                        `monarch runs hold`, `wait`
    detached                         `monarch run --detach`, `monarch runs attach`
    sweep, search, dev               `monarch sweep`, and what it tries; `monarch dev`
    display, sweep_display           what a run and a sweep show
    phases                           the spinner
    terminal, tables                 where output goes, and how wide; columns of text
    interrupts                       Ctrl-C, SIGTERM and SIGHUP
    streams                          standard streams that are closed or full
    own_output                       files that a push leaves out: a command's own output
    large_files                      the question before a push of large files
    sync/                            `monarch sync`
    observe/                         `monarch query`, `hang`, `trace`, `top`, `dashboard`

How hosts are asked, and dead ones found: `monarch/runtime/hosts/asking.py`.
"""
