"""Use cases: what a command does, put together from the packages below. Parsing and printing are in
``cli``.
"""
