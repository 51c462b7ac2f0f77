"""The commands below `Run` in `envgen --help`, a file each."""
