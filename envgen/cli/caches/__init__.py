"""Commands for compiled kernels and leftovers."""
