"""What training and evaluation cost at the papers' sizes: `python benchmark.py`.

benchmark.py writes made-up data (made_up.py) and starts a process for each system of the papers'
tables (systems.py). That process, measure.py, times the first steps of a training, an evaluation,
or steps beside those of an original code base (originals.py). hours.py turns the measurements into
hours of an epoch and of a table's row, and into the lines of results/cost.csv.
"""
