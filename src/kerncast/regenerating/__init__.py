"""Regeneration: a routine is a list of steps, such as sweep, collect, train, compare, replace, and one loop runs them."""

from kerncast.regenerating.loop import FamilyOutcome, regenerate
from kerncast.regenerating.planning import plan
from kerncast.regenerating.routine import Routine, load, shipped

__all__ = ["FamilyOutcome", "Routine", "load", "plan", "regenerate", "shipped"]
