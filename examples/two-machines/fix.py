# What must be changed in the image's vLLM, and why.
