"""Models: from measurements to predicted times and ranked configs."""

from kerncast.models.model import Model
from kerncast.models.train import Recipe, train

__all__ = ["Model", "Recipe", "train"]
