"""Where the work is done: several processes, worker processes that read, and what a device keeps
and computes."""
