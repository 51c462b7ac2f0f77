"""Commands that make and compare images."""
