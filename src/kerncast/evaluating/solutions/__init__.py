"""Somebody else's choices, scored on the same measurements: a max-autotune file, a lookup table, a list of configs."""

from kerncast.evaluating.solutions.choices import Choice, Solutions
from kerncast.evaluating.solutions.formats import read_solutions
from kerncast.evaluating.solutions.scoring import said, score_solutions

__all__ = ["Choice", "Solutions", "read_solutions", "said", "score_solutions"]
