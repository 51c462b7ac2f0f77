"""Measure: smoke, bench, trace, accept, and the records of runs."""
