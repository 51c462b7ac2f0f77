"""Judge what a release would choose for a service on a GPU."""
