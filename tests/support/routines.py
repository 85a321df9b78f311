"""A routine that regenerates a model in seconds, without a device."""

from __future__ import annotations


def tiny_routine(problems: int = 4, configs: int = 4, trees: int = 2, leaves: int = 4) -> str:
    """The text of a routine called `tiny`: sweep, collect with times from a formula, train."""
    return f"""
name = "tiny"
families = ["gemm/triton"]
[sweep]
problems = ["lognormal:{problems};M=16:512;N=16:512;K=16:512"]
vary = ["dtype=fp16", "layout=rcr"]
configs = "sample:{configs}"
[collect]
backend = "kerncast.testing.backends:Analytic"
samples = 2
[train]
folds = 2
threads = 1
knobs = {{ trees = {trees}, leaves = {leaves}, lr = 0.3 }}
"""
