"""What a workspace's code needs beside itself: lock files, wheels, environments of hosts."""
