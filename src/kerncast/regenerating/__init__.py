"""Regeneration: a routine reruns sweep → collect → train → compare, and replaces the model in the store if it is not worse."""

from kerncast.regenerating.planning import plan
from kerncast.regenerating.routine import Routine, load, shipped
from kerncast.regenerating.run import Outcome, regenerate

__all__ = ["Outcome", "Routine", "load", "plan", "regenerate", "shipped"]
