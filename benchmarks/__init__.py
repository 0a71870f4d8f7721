"""Benchmarks of eqsynth: the workloads, and the programs that measure them. They aren't installed
with the package."""
