"""The commands below `Build` in `envgen --help`, a file each."""
