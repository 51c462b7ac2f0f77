"""The steps of scripts/gpu-day, and its report."""
