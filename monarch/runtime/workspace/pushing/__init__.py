"""The author's side of a push: what each host has, what is sent to it, in which order, and
rollbacks.

What to open:

    author, memory                the pushes of one workspace; the memory between them
    workspace_push                a push, step by step
    first_look                    the first scan, which sends files while it runs
    planning                      which files change, as each process sees them
    hosts_in_push                 the hosts of a push: stage, commit, go back
    host_states                   files that hosts have of their own
    spreading                     content that goes from host to host
    sharing, shared_folder        hosts that see one folder; the id of a folder
    local_replicas                replicas on the author's own host
    push_words                    the texts in a push's report
    host_history, rollback        earlier generations; going back to one
    late_hosts                    hosts that are added late, or come back; with
                                  `monarch/runtime/hosts/waiting_spawns.py`
"""
