"""What training and evaluation cost at the papers' sizes: `python benchmark.py`."""
