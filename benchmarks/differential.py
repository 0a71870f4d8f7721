"""The differential tests of all operators that eqsynth takes from torch: the whole table.

    python -m benchmarks.differential [--part N --parts M] [--only TEXT] [--columns A,B]

Printed are each failure (operator, arguments, columns, the smallest operands that show it, the
result, the expected one), and the numbers of entries, cases and failures. The exit status is 1 if a
case failed.
"""

from __future__ import annotations

import argparse

from eqsynth.testing.differential.columns import COLUMNS
from eqsynth.testing.differential.harness import cases_of, run
from eqsynth.testing.differential.table import ROWS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--part", type=int, default=0, help="which part of the table")
    parser.add_argument("--parts", type=int, default=1, help="of how many")
    parser.add_argument("--only", default="", help="cases whose text contains this")
    parser.add_argument("--columns", default=",".join(COLUMNS), help="of the backends, which")
    given = parser.parse_args()
    cases = [c for c in cases_of(ROWS, given.part, given.parts) if given.only in c.name]
    outcome = run(cases, given.columns.split(","))
    for failure in outcome.failures:
        print(failure)
    print(outcome)
    return bool(outcome.failures)


if __name__ == "__main__":
    raise SystemExit(main())
