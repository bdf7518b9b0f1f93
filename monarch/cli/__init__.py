"""The ``monarch`` command.

A command's options and help are declared in `commands`, or in the `*_commands` of its group. There
`calls` names the function that runs it, whose module is imported only then.

What to open:

    entry, main              the start of the command; how its errors reach a person
    commands                 arguments, options and help of all commands that have no group
    options                  options of several commands; `calls`
    project                  `monarch.toml`: its keys, and the job that it describes
    trust                    trust in the commands of project files
    own_output               files that a push leaves out: a command's own output
    large_files              the question before a push of large files
    allocation/              `monarch apply`, `status`, `kill`, `init`, `trust`, `context`
    run/, runs/, sweep/      `monarch run`, `recipe`, `dev`; `monarch runs`; `monarch sweep`
    hosts/                   `monarch hosts`, `logs`, `exec`, `shell`, `forward`, `doctor`
    debug/                   `monarch debug`, `env`
    sync/                    `monarch sync`
    observe/                 `monarch query`, `hang`, `trace`, `top`, `dashboard`
    terminal/                output, keys, questions, interrupts

How hosts are asked, and dead ones found: `monarch/runtime/hosts/asking.py`.
"""
