"""The artefact: a model directory, its manifest, what it covers, its intervals, its card."""

from kerncast.models.model import Model

__all__ = ["Model"]
