"""The links of a process to others: flow control, bulk, trees, peers, membership.

Each lane to an actor is flow-controlled by credit: a sender that outruns its receiver waits
(back-pressure), and after a while spills to disk. The failure detector (heartbeats, pidfds) and the
host agents say which processes are gone; `peer_down` makes every part forget them.

What to open:

    address_book                 membership: the processes that a node knows
    peer                         one other process
    failure_detector             how the end of a process is noticed
    peer_down                    how the node handles the end of a process
    network                      the interface between the parts of a node
    outboxes                     all lanes of a process
    outbox                       one lane, and its back-pressure
    overflow                     messages that were spilled to disk
    flow_marks                   pings that tell a sender that a receiver has room
    waiting_switches             code switches that wait behind calls
    bulk_sender, bulk_receiver   large messages
    secret                       the job's secret, on its way to a process that is started
    reachable                    where the client listens for other machines
    shared_pool                  the shared memory for large messages
    broken                       payloads that could not be transferred
    trees                        broadcast trees; with `monarch/core/fanout.py`
"""
