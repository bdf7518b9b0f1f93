"""One-sided memory: buffers that other processes read and write without their owner's help."""
