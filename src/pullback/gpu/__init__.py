"""The GPU backend: Triton kernels generated from the formula records."""
