"""FlashInfer's cache, from inside a container: never a traceback."""
