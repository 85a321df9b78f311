"""The rules that a model obeys: those of its family, without the ones that its measurements contradict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kerncast.core.device import Device
from kerncast.core.op import Family
from kerncast.learning.tables.table import Rule, config_rules, family_rules, namespaces, problem_rules

if TYPE_CHECKING:
    from kerncast.models.model import Model

__all__ = ["Rule", "config_rules", "family_rules", "model_rules", "namespaces", "problem_rules"]


def model_rules(model: Model, device: Device | None = None) -> list[Rule]:
    """What a problem and a config must obey before the model is asked about them, on its own device unless one is given."""
    manifest = model.manifest
    asked = model.profile if device is None or device == model.device else device
    return [*family_rules(model.family, asked, manifest.dtypes, manifest.contradicted), *_of_the_op(model.family)]


def _of_the_op(family: Family) -> list[Rule]:
    """Kernels that compute something else than the op are no answer to its problems, however fast they ran."""
    found = []
    for name, labels in family.other_work.items():
        parameter = family.config.parameters[name]
        # Rules of configs alone are settled before a model is made; compiled code asks those again that read the problem too.
        impossible = next(iter(family.op.problem.symbols.values())) < 0
        for label, words in labels.items():
            index = parameter.index(label)
            assert index is not None
            symbol = family.config.symbols[name]
            found.append(Rule(f"not_{label}", f"{label} computes {words}", (symbol != parameter.number(index)) | impossible))
    return found
