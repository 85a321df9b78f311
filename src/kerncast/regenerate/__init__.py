"""Regeneration: a recipe reruns sweep → collect → train → compare, and replaces the model in the store if it is not worse."""

from kerncast.regenerate.recipe import Recipe, load, shipped
from kerncast.regenerate.run import Outcome, plan, regenerate

__all__ = ["Outcome", "Recipe", "load", "plan", "regenerate", "shipped"]
