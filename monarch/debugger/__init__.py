"""The console of calls that stand at a breakpoint; the calls themselves: runtime.observe."""
