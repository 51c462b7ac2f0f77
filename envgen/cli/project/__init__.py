"""Commands that set up a project."""
