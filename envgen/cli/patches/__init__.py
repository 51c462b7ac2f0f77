"""`envgen patch`."""
