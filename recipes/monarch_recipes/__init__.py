"""Training recipes: `ddp` is one file; `titan` is a folder; `fault_tolerant` has its parts in
`replicas/`, `rl` in `rollouts/`. Several recipes share the other modules.

Which file to open for a change:

- float16 in ddp: `precision.py`
- the numbers that replica groups share: `monarch_recipes/replicas/membership.py`
- the samples of a rank: `samples.py`
- the checkpoints of a titan run: `titan/checkpoints.py`
- the TorchTitan settings that titan refuses: `titan/config.py`, `titan/machine.py`
- the parts of TorchTitan that titan uses, for each version: `titan/versions/`
- TorchTitan on CPUs: `titan/versions/cpu.py`

The modules that several recipes share:

    schedule, randomness   learning rate and batch split of a step; random numbers of a step
    samples, streams,      each rank's share of the samples: of an indexed data set, of a stream;
      loaders, digits        the kinds of data that a task may return; the examples' data set
    task                   functions of a recipe that the user's module replaces
    optimizer, precision,  a step: learning rate and clipping; float16 and bfloat16;
      buffers, tally         BatchNorm's statistics; means over micro-batches and ranks
    gradients              gradients averaged over all ranks, even if a step skips parameters
    fingerprint, alike     compare the weights of ranks; hold the run where they differ
    evaluation, best       the held-out samples; the best evaluation, and when to stop early
    extra_state            a task's state besides model and optimizer, such as an EMA
    checkpoint, savable,   checkpoint files; the values that they may hold;
      export                 their weights as a plain file
    host_copies            continue from copies of the state in the memory of the hosts
    rendezvous, device     where the ranks of a process group meet; the device of a rank
    groups                 make process groups again after an abort, under their old names
    collective             results and checks that all ranks share
    results                messages from ranks to the client, and from the client to its caller
    extras, profiling      the config's table `extras`; a trace of a few steps
    memory, next_start     the memory of a step; whether a restart would still fit the run
"""
