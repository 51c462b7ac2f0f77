"""The commands below `Measure` in `envgen --help`, a file each."""
