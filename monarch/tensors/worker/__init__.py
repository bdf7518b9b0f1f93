"""The half of the tensor engine that lives in the procs.

What to open:

    worker                    the actor that the controller calls
    executor                  runs records; values of failed operations
    definitions               the templates and meshes that a worker knows
    lanes                     streams, on CPU and CUDA
    slots                     values that pass between streams and actors
    collectives, groups       what ranks send each other; the process groups for it
    arrivals                  tensors that are handed to an actor
    current                   what remote functions find in their proc
    describing                a function's effect, found on one shard
    objects, remote_classes   objects that live at the workers
    packing                   how small values travel
"""
