"""What runs in a container's own Python, and the one runner that sends it there (``run``).

``frame.py`` and ``predict_*.py`` are text for that Python: 3.8 and later, standard library only. They collect
evidence; what it means is decided on the host.
"""
