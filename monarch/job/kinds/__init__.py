"""The kinds of jobs: where their machines come from, and how they are started and ended.

What to open:

    local                        this machine as an allocation
    process                      local processes as hosts, and how lost ones are restarted
    remote                       the common part of hosts on other machines
    login                        hosts that are started by a login
    login_session, ssh           scripts that answer orders, by a login; how ssh is called
    scheduled                    hosts that a scheduler places
    batch                        the job of a client script that its own job has started
    slurm                        jobs on Slurm, and what its states mean
    kubernetes, kube_pods        jobs on Kubernetes; what the states of pods mean
    kube_manifests, kube_api     the manifests of a job; how the API server is asked
    ray                          jobs on nodes of a Ray cluster
    skypilot, lightning, cloud   machines of clouds; the command that these run
"""
