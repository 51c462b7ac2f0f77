"""envgen: one YAML file to a proven, running vLLM + FlashInfer container."""

__version__ = "0.1.0"
