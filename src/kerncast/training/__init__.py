"""Training: the recipe, the procedure, its folds, warm starts, what to measure next."""

from kerncast.training.procedure import Recipe
from kerncast.training.train import train

__all__ = ["Recipe", "train"]
