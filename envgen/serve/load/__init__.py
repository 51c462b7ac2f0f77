"""The load generator: streamed requests to an OpenAI-compatible server, timed where the bytes arrive."""
