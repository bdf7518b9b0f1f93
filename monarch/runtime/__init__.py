"""Processes and the agents in them: client, host agent, zygote, proc."""
