"""Regeneration: a recipe reruns sweep → collect → train → compare, and replaces the model in the store if it is not worse."""

from kerncast.regenerate.planning import plan
from kerncast.regenerate.recipe import Recipe, load, shipped
from kerncast.regenerate.run import Outcome, regenerate

__all__ = ["Outcome", "Recipe", "load", "plan", "regenerate", "shipped"]
