"""Searching a declared space for what is fastest: spaces with topologies, and tuners.

Not here: what a space is of (``lower/spaces.py``: schedules of kernels), how a point is measured.
"""
