"""Readers of data sets, one file a family of layouts. Each gives a Split; data.py chooses among them."""
