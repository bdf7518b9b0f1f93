"""Distributed tensors: one program whose torch operations run on every proc of a mesh.

The controller (a script, or an actor) *activates* a mesh. From then on each torch operation is
looked up in a cache of templates, written as a few integers into a batch, and run by a worker actor
in every proc on its own local tensors. `docs/tensors.md` shows how programs use it.

What to open:

    engine    from procs to the device mesh of their workers
    core/     decisions without torch, processes or a clock: keys of the cache, records, what a
              failure spoils, permissions to write, the text of programs
    client/   the controller's half: what happens to a torch operation; sending; failures
    worker/   the procs' half: records, collectives, streams, hand-over to actors
    api/      the names that programs use
"""
