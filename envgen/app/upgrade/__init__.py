"""Change: a new release, or the way back, is tried beside what runs, judged, and kept or left."""
