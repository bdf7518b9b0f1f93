"""The main programs of our processes.

What to open:

    host_main                            a host agent in a process of its own
    scheduled_task, slurm_task, pod_task a host agent under a scheduler; under Slurm; in a pod
    zygote, learned_modules              the fork server; the modules that it imports ahead
    template_cuda                        keeps CUDA out of the fork server
    bootstrap                            the life of a proc, from fork to exit
"""
