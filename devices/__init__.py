"""Worker processes that read, and what a device keeps and computes."""
