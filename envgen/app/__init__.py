"""Use cases: what a command does, put together from the packages below. May import all of them but ``cli``."""
