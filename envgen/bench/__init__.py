"""Check, load and benchmark a server, and record the runs. Extra: ``envgen[bench]``."""
