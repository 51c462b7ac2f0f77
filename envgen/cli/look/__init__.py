"""Commands that look for problems."""
