"""Training recipes: `ddp` is one file; `titan` is a folder; `fault_tolerant` has its parts in
`replicas/`, `rl` in `rollouts/`. The modules beside them serve more than one.

What to open, by what you change:

- float16 in ddp; what replica groups share: `precision.py`;
  `monarch_recipes/replicas/membership.py`
- which samples a rank sees: `samples.py`
- what a titan run saves; what of its config is refused: `titan/checkpoints.py`;
  `titan/config.py`, `titan/machine.py`
- what of TorchTitan is used, of each version; how it runs on CPUs: `titan/versions/`;
  `titan/versions/cpu.py`

The modules that serve more than one recipe:

    schedule, randomness   learning rate and batches by step; random numbers by place in a run
    samples, streams,      the share of samples of each rank: by their number, of a stream;
      loaders, digits        what a task's data may be; the data set of the examples
    task                   parts of a recipe that a module of the user's replaces
    optimizer, precision,  a step: rates and clipping; float16 and bfloat16;
      buffers, tally         BatchNorm's statistics; means over micro-batches and ranks
    gradients              gradients that are averaged, whichever parameters a step uses
    fingerprint, alike     whether ranks have the same; what happens where they do not
    evaluation, best       the held-out samples; the best evaluation, and when to stop early
    extra_state            what a task keeps besides model and optimizer, as an EMA
    checkpoint, savable,   saved states; what they may hold;
      export                 their weights as a plain file
    host_copies            replicas go on from copies in the memory of their hosts
    rendezvous, device     where the ranks of a process group meet; the device of a rank
    groups                 process groups, made anew in place under their names
    collective             results and checks that all ranks share
    results                messages from ranks to the client, and from that to its caller
    extras, profiling      the config's table `extras`; a trace of a few steps
    memory, next_start     the memory of a step; whether the next start can go on
"""
