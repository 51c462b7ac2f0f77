"""The commands below `Set up` in `envgen --help`, a file each."""
