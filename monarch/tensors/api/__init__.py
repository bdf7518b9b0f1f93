"""The names that programs use, under `monarch` and at Monarch's addresses.

What to open:

    remote, functions    functions on workers; how workers find them
    opaque               objects on workers that return tensors
    remote_class         classes whose methods run on workers, and return nothing
    trees                values of tensors; reduce and to_mesh of trees
    recordings           coalescing, compile, explain
    gradients            backward
    autograd_functions   ``autograd.Function`` on workers
    actor_results        ``endpoint.rref(...)``
    random_state         `monarch.random`
    builtin_functions    `monarch.builtins`
"""
