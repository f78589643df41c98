"""Compiling, linking and caching of kernels. Nothing here depends on what a kernel computes."""
