"""What a release would choose for a service on a GPU: the request, the judgement of its answer, the patterns."""
