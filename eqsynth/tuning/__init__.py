"""Search a declared space for its fastest point: parameters, spaces, and tuners.

    rows in 1..8, unrolled in {1, 2, 4}    ->    rows 8, unrolled 2: 1.3 ms

Not here: the spaces of kernels' schedules (``lower/spaces.py``), how a point is measured.
"""
