"""Decisions without I/O: events and the time go in, effects come out.

What to open:

    supervision                    which supervisor is told about a failure
    mailbox                        the order in which an actor takes messages; fences and halts
    call_table                     answers that are expected, and from which processes
    flow                           flow control: how much may be under way; with
                                   `monarch/runtime/links/outbox.py`
    fanout                         broadcast trees; with `monarch/runtime/hosts/relay.py`
    reassembly                     bulk in chunks, and the order of messages around it
    regions                        which parts of a stretch of memory are in use
    heartbeats                     failure detection
    rings                          deadlock detection (edge chasing); with
                                   `monarch/runtime/cells/ring_watch.py`
    waits                          the waits of a mesh as a graph, and in words
    collectives                    collectives that do not match on all ranks
    dropped                        when a dropped mesh is ended; with
                                   `monarch/runtime/dropped_meshes.py`
    holds                          clocks that stop while calls are held; texts about held calls
    log_lines                      a process's output, cut into lines
    log_text                       the layout of many ranks' lines
    log_aggregation, log_windows   similar lines as one; how long they are collected
    log_bursts                     lines that several ranks print at once, condensed
    log_backlog                    lines that wait for a slow reader
    environment                    environment variables across ranks: hidden and differing values
    grouping                       ranks grouped by equal answers
    rank_sets                      sets of ranks as people write them: ``0-3,7``
    event_ring                     the last events of a process
    code_switch/                   the switch of all ranks to new code
"""
