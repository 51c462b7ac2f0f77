"""What a release of vLLM would choose: a program of several files, run by the image's own Python."""
