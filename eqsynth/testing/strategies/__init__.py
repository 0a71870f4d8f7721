"""Hypothesis strategies for tensor programs, for eqsynth's tests and for projects that use it.

``types.py`` has dtypes, shapes and arrays; ``scopes.py`` index expressions and scopes;
``programs.py`` programs of operators, with ``structures.py``; ``modules.py`` torch modules, which
``growing.py`` builds from the lines in ``layers.py``. Each strategy shrinks to the simplest value
that its docstring names. hypothesis is needed here, but not for ``eqsynth.testing`` itself.

>>> from hypothesis import find
>>> from eqsynth.testing import strategies
>>> program = find(strategies.operator_programs(), lambda term: term.name == "Matmul")
>>> [arg.shape for arg in program.args]
[(1, 1), (1, 1)]
"""

from eqsynth.testing.strategies.modules import torch_modules
from eqsynth.testing.strategies.programs import VIEWS, operator_programs
from eqsynth.testing.strategies.scopes import (
    ANY,
    BARE,
    BOUNDED,
    EXTENTS,
    NESTED,
    WINDOWS,
    bodies,
    indices,
    nested_scopes,
    products,
    reads,
    reads_of,
    scopes,
)
from eqsynth.testing.strategies.types import (
    arrays,
    dtypes,
    environments,
    extents,
    shapes,
    tensor_types,
)

__all__ = [
    "ANY", "BARE", "BOUNDED", "EXTENTS", "NESTED", "VIEWS", "WINDOWS", "arrays", "bodies", "dtypes",
    "environments", "extents", "indices", "nested_scopes", "operator_programs", "products",
    "reads", "reads_of", "scopes", "shapes", "tensor_types", "torch_modules",
]  # fmt: skip
