"""Packages that a workspace's code needs: lock files, wheels, environments of hosts.

What to open:

    surroundings                   what is pushed with a workspace: editable installs, an
                                   environment
    environment                    the wheels that hosts lack
    lock_files                     the packages that a workspace needs
    wheels                         the pushed wheels, and which Python needs which
    host_environment               the packages, unpacked on a host
    python_here                    this Python: its tag, platforms and packages
    cache                          where wheels and environments are kept; how large that gets
"""
