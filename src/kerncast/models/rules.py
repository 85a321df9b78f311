"""The rules that a model obeys: those of its family, without the ones that its measurements contradict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kerncast.device import Device
from kerncast.tables.rules import Rule, config_rules, family_rules, namespaces, problem_rules

if TYPE_CHECKING:
    from kerncast.models.model import Model

__all__ = ["Rule", "config_rules", "family_rules", "model_rules", "namespaces", "problem_rules"]


def model_rules(model: Model, device: Device | None = None) -> list[Rule]:
    """What a problem and a config must obey before the model is asked about them, on its own device unless one is given."""
    manifest = model.manifest
    asked = model.profile if device is None or device == model.device else device
    return family_rules(model.family, asked, manifest.dtypes, manifest.contradicted_rules)
