"""Packages that a workspace's code needs: lock files, wheels, environments of hosts.

What to open:

    surroundings                   what comes along with a workspace: editable installs, an
                                   environment
    environment                    the wheels that hosts lack
    lock_files                     what a workspace says it needs
    wheels                         wheels on their way, and which Python wants which
    host_environment               the packages, unpacked on a host
    python_here                    this Python: its tag, platforms and packages
    cache_folder, cache_trimming   where wheels and environments are kept; how large that gets
"""
