"""Few forms of each constant: plans that don't store one weight in several layouts.

    10 steps of a loop read w by rows, 10 read it by columns    ->    all read it by rows

A kernel is timed alone, with its weights in the last cache if all weights of the program fit into
it. By such times the rows of one weight are as good as its columns, and noise chooses. But a plan
that reads both stores the weight twice, and what it stores has to stay in that cache from one call
to the next. (NasRNN, 10 steps, AMD EPYC: of 16 weights of 1 MB, 16 to 25 forms were stored. The
program took 1.5 ms with 16, and 1.8 to 2.0 with 25, though its kernels took less alone. Other
programs differ for other reasons: one with 16 forms took 2.0 ms.)

Not here: the costs of kernels (``cost.py``), which plan is the fastest (``in_place.py``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from eqsynth.extract.candidates import Candidate
from eqsynth.extract.kernel import Kernel, Layout
from eqsynth.extract.plan import Plan
from eqsynth.extract.schedule import Block
from eqsynth.extract.target import Target
from eqsynth.ir.tensor import ClassRef

Form = tuple[ClassRef, Layout, str]
"""A constant as a kernel reads it: its class, its layout, and the size of blocks if it is stored
in panels for them."""

ROUNDS = 4
"""The most selections, each of which prefers the forms that the last one uses most."""


class Forms:
    """The forms that a plan stores, and what reading a form costs beside the kernels' times.

    A form is brought into the last cache once a call, from memory, at the cost of its bytes. The
    steps that read it share this cost. So a form that many steps read is cheap for each of them,
    and one that a single step reads must save that step more than it costs.
    """

    def __init__(self, plan: Plan, target: Target) -> None:
        self._per_byte_s = 1 / target.levels[-1].bandwidth_bytes_per_s
        self._steps = Counter(
            form for step in plan.steps for form in _forms(step.kernel, step.constants)
        )

    def beside_s(self, candidate: Candidate) -> float:
        """The share of a candidate in the cost of the forms that it reads; of a form that no step
        reads the whole cost."""
        constants = {n: ref for n, ref in enumerate(candidate.args) if ref.constant}
        return sum(
            self._cost_s(form) / max(1, self._steps[form])
            for form in _forms(candidate.kernel, constants)
        )

    @property
    def total_s(self) -> float:
        """The cost of all forms of the plan."""
        return sum(map(self._cost_s, self._steps))

    def _cost_s(self, form: Form) -> float:
        return self._per_byte_s * form[0].type.nbytes


def _forms(kernel: Kernel, constants: Mapping[int, ClassRef]) -> Iterator[Form]:
    schedule = kernel.schedule
    packed = schedule.packed if isinstance(schedule, Block) else -1
    for n, ref in constants.items():
        # Panels depend on the block's size, and not on which argument they are.
        size = f"{schedule.rows}x{schedule.columns}" if isinstance(schedule, Block) else ""
        yield ref, kernel.inputs[n], size if n == packed else ""


def in_few_forms(plan: Plan, select: Callable[[Forms], Plan], target: Target, far: int) -> Plan:
    """Return a plan that costs little more and stores its constants in fewer forms; the plan itself
    if none is found, or if the weights are too large for the caches anyway.

    Args:
        select: returns the best plan if reading forms costs what ``Forms`` says; the costs of its
            steps are those of the kernels alone.
        far: the number of caches that don't hold the weights (``Target.far``).
    """
    if far >= len(target.levels[1:-1]):
        return plan
    forms = Forms(plan, target)
    least_s = plan.cost_s + forms.total_s
    for _ in range(ROUNDS):
        found = select(forms)
        forms = Forms(found, target)
        if found.cost_s + forms.total_s >= least_s:
            break
        plan, least_s = found, found.cost_s + forms.total_s
    return plan
