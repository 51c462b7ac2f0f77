"""What runs in a container's own Python (3.8 and later, standard library only), and the one runner
that sends it there.
"""
