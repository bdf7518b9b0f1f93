"""Allocations, and projects: `monarch apply`, `status`, `kill`, `init`, `trust`, `context`.

What to open:

    allocation                   `monarch apply`, `status`, `kill`, `host`
    host_table                   the table of hosts
    contexts                     `monarch context`
    users                        the programs that use an allocation, and the question before it
                                 ends
    init, found_code             `monarch init`, and what it finds in a project
    trust_command                `monarch trust`
"""
