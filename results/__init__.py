"""The numbers that README.md and docs/ show, and how they get there.

rows.yaml says how the rows of a table are run and which numbers of a run they show.
`python -m results run TABLE` runs them, and `python -m results add FOLDER` reads runs that exist
already (runs.py). Both write one line per run to numbers/TABLE.csv. `python -m results --write`
computes means, deviations and intervals from these lines (tables.py) and writes the tables into
the documents (__main__.py).

The other CSV files hold tables as they are shown. Those of parity.csv and cost.csv are written by
the programs that measure them. The others are recorded: the files of their runs were not kept.
"""
