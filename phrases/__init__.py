"""Phrase localisation: which region of a photo does a phrase of its caption mean (`jwae` 5.2, Table 7)?"""
