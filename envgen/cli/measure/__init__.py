"""Measure: smoke, stress, bench, accept, and the records of runs."""
