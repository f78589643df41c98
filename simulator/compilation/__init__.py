"""Compiling kernels. Nothing here knows what a kernel computes; change it only for Numba's sake."""
