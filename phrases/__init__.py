"""Phrase localisation: find the region that a phrase means (jwae 5.2, Table 7)."""
