"""Hosts of an allocation: `monarch hosts`, `logs`, `exec`, `shell`, `forward`, `doctor`.

What to open:

    hosts               `monarch hosts`
    host_commands       arguments, options and help of these commands
    host_logs           `monarch logs`
    hosts_here          the hosts and programs that run for a folder now
    exec                `monarch exec`, `shell`, `forward`
    doctor              `monarch doctor`; the checks on a host: `monarch/job/doctor`
"""
