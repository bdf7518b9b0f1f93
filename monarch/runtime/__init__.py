"""Processes and the agents in them: client, host agent, zygote, proc.

Modules that several folders need are here; each folder has a table of its own.

What to open:

    node, current_node          a process on the network: address, peers, ports; the node of this
                                one
    process                     the agent of this process
    context                     the actor that runs here, and its message
    answers, port               answers to calls and requests; the sending end of a port
    promise, waits              values that threads wait for; which actors wait for which answers
    client_agent,               the client; the end of meshes that it has dropped
      dropped_meshes
    held                        the procs that a process refers to; what runs outside of calls
    run_gate                    calls that a rank refuses, because it runs older code
    code_states                 calls that are not sent, after a push to a slice; with
                                `monarch/actor/mesh_ref.py`
    uninterrupted               blocks that Ctrl-C may not interrupt; with
                                `monarch/cli/terminal/interrupts.py`
    telemetry                   OpenTelemetry
    entry/                      the main programs: host agents, the fork server, procs
    cells/                      actors in their process
    procs/                      the agent of a proc
    hosts/                      the agent of a host
    links/                      the connections and messages between processes
    ends/                       ends of processes
    output/                     the output of ranks
    observe/                    questions to processes
    debugger/                   held calls, and looks into procs
    programs/                   programs that hosts run for people
    workspace/                  pushes, replicas and reloads
"""
