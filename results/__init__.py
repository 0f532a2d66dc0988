"""The figures that README.md and docs/ show: one CSV file for each document."""
