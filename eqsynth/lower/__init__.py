"""Lowering: terms become runnable kernels, kernels a compiled program."""
