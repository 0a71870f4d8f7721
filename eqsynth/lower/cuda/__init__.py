"""CUDA: generated kernels as source text and as cubins, launching them, and torch's CUDA operators.

Everything but the launch works without a GPU. Only this package knows CUDA: elsewhere ``cuda`` is
one of the kinds of a :class:`~eqsynth.extract.target.Target`.
"""
