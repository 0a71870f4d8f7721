"""Runs captured programs by the NumPy oracle, opaque operators through torch."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from eqsynth.frontend.captured import Captured
from eqsynth.ir.interpret import evaluate_one
from eqsynth.ir.tensor import Op, Tensor

Run = Callable[..., Any]


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    wide = tensor.double() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
    return wide.detach().numpy()


def to_torch(array: np.ndarray, dtype: str) -> torch.Tensor:
    return torch.as_tensor(np.array(array)).to(getattr(torch, dtype))


def outputs(captured: Captured, *args: Any, **kwargs: Any) -> list[torch.Tensor]:
    """The program's outputs, those of mutations included."""
    fed = zip(captured.program.inputs, captured.bind(*args, **kwargs), strict=True)
    env = {term.name: to_numpy(tensor) for term, tensor in fed}
    env |= {name: to_numpy(tensor) for name, tensor in captured.weights.items()}
    values: dict[Tensor, np.ndarray] = {}
    for term in captured.program.terms():
        if isinstance(term, Op) and term.name == "Opaque":
            call = captured.opaque[str(term.attrs[0])]
            result = call(*(to_torch(values[a], a.dtype) for a in term.args))
            assert (tuple(result.shape), str(result.dtype)) == (term.shape, f"torch.{term.dtype}")
            values[term] = to_numpy(result)
        else:
            values[term] = evaluate_one(term, values, env)
    return [to_torch(values[term], term.dtype) for term in captured.program.outputs]


@pytest.fixture(scope="session")
def run_outputs() -> Callable[..., list[torch.Tensor]]:
    """``run_outputs(captured, *args)``: the program's outputs as they are."""
    return outputs


@pytest.fixture
def run() -> Run:
    """``run(captured, *args)``: the result as the user sees it, mutations written back."""

    def call(captured: Captured, *args: Any, **kwargs: Any) -> Any:
        results = outputs(captured, *args, **kwargs)
        inputs = captured.bind(*args, **kwargs)
        for output, place in captured.mutations.items():
            inputs[place].copy_(results[output])
        return captured.unflatten(results, inputs)

    return call
