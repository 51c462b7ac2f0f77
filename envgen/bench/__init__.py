"""Check and benchmark a server, and record the runs."""
