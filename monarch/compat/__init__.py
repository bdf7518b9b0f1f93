"""The names that programs written for Monarch import from Monarch's addresses.

``addresses`` lists them; ``finder`` answers imports of those that are no files of ours. The other
files have code that exists for such programs only.

What to open:

    addresses                         the table of addresses and names
    finder                            the import hook
    internals                         inner names of Monarch's that have no counterpart here
    words                             names for annotations, and facts of Monarch itself
    actor_side                        names for code inside actors
    mock                              `patch_actor`
    auto_reload                       Monarch's reloader of modules
    hosts                             older functions for hosts of this machine
    alloc                             allocators
    launch                            launches by a scheduler
    commands, command_line, colors    Monarch's commands as functions, and their parser and colours
    thread_timeout                    a limit for code of one thread
    spmd_job                          `monarch.job.spmd`
    utils                             older spellings of `monarch.spmd`
    debug_controller, debug_session   upstream's debug controller, and its sessions
    debug_command, debug_io           its commands as objects; where its console reads and writes
    source_loader                     files' source text, from the client
    geometry                          helpers for shapes
    tensor_functions,                 what tests of distributed tensors import
    tensor_groups, tensor_testing
"""
