"""Our training beside the original code of each system: equal weights and batches, step by step."""
