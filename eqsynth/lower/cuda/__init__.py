"""CUDA: generated kernels as source and as cubins, their launch, and torch's CUDA operators.

All but the launch works without a GPU. Here alone ``cuda`` is a matter of fact: elsewhere it is one
value of a :class:`~eqsynth.extract.target.Target`.
"""
