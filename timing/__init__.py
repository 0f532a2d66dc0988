"""What benchmark.py measures of training on a device."""
