"""egglog's engine, `egglog.bindings`, without the rest of the package egglog.

    from egglog import bindings as egg    ->    from eqsynth.rules.bindings import egg

Python runs `egglog/__init__.py` before any module of the package. That file defines a language of
its own for rules in Python, and imports black and graphviz, which show them: 0.13 s of CPU, in each
process that searches. eqsynth speaks to the engine in egglog's text and needs the extension module
alone, which takes 0.01 s.

The extension module is found beside `egglog/__init__.py` and loaded from there. It gets no entry in
`sys.modules`, so a program that imports egglog afterwards gets all of egglog, with the same classes
(an extension module is initialized once a process). Where egglog is imported already, or isn't laid
out like this, it is imported as usual.
"""

from __future__ import annotations

import sys
from importlib.machinery import ExtensionFileLoader, PathFinder
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import TYPE_CHECKING, Final

__all__ = ["egg"]

_NAME: Final = "egglog.bindings"


def _alone() -> ModuleType | None:
    """The extension module by itself; None where the usual import has to find it."""
    if "egglog" in sys.modules:
        return None
    package = find_spec("egglog")
    places = package.submodule_search_locations if package else None
    spec = PathFinder.find_spec(_NAME, list(places)) if places else None
    if spec is None or not isinstance(spec.loader, ExtensionFileLoader):
        return None
    try:
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError:
        return None
    finally:
        # Python itself makes an entry for an extension module. With it, `import egglog` would not
        # bind the name `egglog.bindings`, since the module would count as imported.
        if "egglog" not in sys.modules:
            sys.modules.pop(_NAME, None)
    return module


if TYPE_CHECKING:
    from egglog import bindings as egg
else:
    egg = _alone()
    if egg is None:
        from egglog import bindings as egg
