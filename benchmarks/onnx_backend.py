"""Run ONNX's backend tests; print the number of cases by verdict, and the unsupported operators.

    python -m benchmarks.onnx_backend                    all cases of a single operator
    python -m benchmarks.onnx_backend --kind simple      small models
    python -m benchmarks.onnx_backend --only resize      the cases with this text in their names
    python -m benchmarks.onnx_backend --no-capture       only run the imported modules (seconds)

The cases are run by ``eqsynth/testing/onnx_backend.py``.
"""

from __future__ import annotations

import argparse
import os
from collections import Counter

from eqsynth.testing.onnx_backend import KINDS, Verdict, cases, run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--kind", choices=(*KINDS, "all"), default="node")
    parser.add_argument("--only", default="", help="a part of the cases' names")
    parser.add_argument("--no-capture", action="store_true", help="run the modules only")
    parser.add_argument("--all", action="store_true", help="print every case that isn't right")
    args = parser.parse_args()
    os.environ.setdefault("TORCH_LOGS", "-all")
    ends: Counter[Verdict] = Counter()
    unknown: Counter[str] = Counter()
    for kind in KINDS if args.kind == "all" else (args.kind,):
        for case in cases(kind):
            if args.only not in case.name:
                continue
            outcome = run(case, captured=not args.no_capture)
            ends[outcome.verdict] += 1
            if outcome.verdict is Verdict.UNKNOWN:
                unknown[outcome.tells] += 1
            bad = outcome.verdict in (Verdict.WRONG, Verdict.ESCAPED)
            if bad or (args.all and outcome.tells):
                print(f"{outcome.verdict.value:9} {outcome.case}: {outcome.tells}", flush=True)
    print()
    for verdict in Verdict:
        if ends[verdict]:
            print(f"{ends[verdict]:6}  {verdict.value}")
    if unknown:
        print("\nunknown, and how many cases need it:")
    for name, count in unknown.most_common():
        print(f"{count:6}  {name}")


if __name__ == "__main__":
    main()
