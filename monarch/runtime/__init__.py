"""Processes and the agents in them: client, host agent, zygote, proc.

What several rooms need is here; each folder has a table of its own.

What to open:

    node, current_node          a process on the network: address, peers, ports; the node of this
                                one
    process                     the agent of this process
    context                     the actor that runs here, and its message
    answers, port               answers to calls and requests; the sending end of a port
    promise, waits              values that are waited for; which actors wait for which
    client_agent,               the client; what it ends of what it has dropped
      dropped_meshes
    held                        what a process refers to, and what runs in it by itself
    run_gate                    calls that a rank refuses, because it runs older code
    code_states                 calls that are not sent, after a push to a slice; with
                                `monarch/actor/mesh_ref.py`
    uninterrupted               what Ctrl-C may not cut short; with
                                `monarch/cli/terminal/interrupts.py`
    telemetry                   OpenTelemetry
    entry/                      what a process begins with: host agents, the fork server, procs
    cells/                      actors in their process
    procs/                      the agent of a proc
    hosts/                      the agent of a host
    links/                      what processes send to each other
    ends/                       ends of processes
    output/                     what ranks print
    observe/                    questions to processes
    debugger/                   held calls, and looks into procs
    programs/                   programs that hosts run for people
    workspace/                  pushes, replicas and reloads
"""
