"""Commands that measure: smoke, bench, trace, accept, results."""
