"""The commands below `Check and clean up` in `envgen --help`, a file each."""
