"""Evaluation of models."""
from evaluation.encoding import Gallery, encode

__all__ = ["Gallery", "encode"]
