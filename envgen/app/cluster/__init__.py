"""Services on several machines: the only package that knows ranks."""
