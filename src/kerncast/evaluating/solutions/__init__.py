"""Another system's choices, scored on the same measurements: a max-autotune file, a lookup table, a list of configs."""

from kerncast.evaluating.solutions.formats import read_solutions
from kerncast.evaluating.solutions.scoring import said, score_solutions
from kerncast.evaluating.solutions.solution import Solution, Solutions

__all__ = ["Solution", "Solutions", "read_solutions", "said", "score_solutions"]
