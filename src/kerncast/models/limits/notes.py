"""What a model's training data leave open: kinds of problems that were never measured, failures that were never seen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kerncast.core import rates
from kerncast.core.io.quoting import word
from kerncast.core.io.terminal import counted
from kerncast.core.parameters import Bool, Categorical
from kerncast.data.isolated_times import isolated_sentence
from kerncast.learning.learners.gbdt import FEWEST_FAILURES
from kerncast.library.declared.declaration import is_written
from kerncast.library.problems import named_sets
from kerncast.models.limits.trained import fact_words
from kerncast.models.manifest import EVALUATION

if TYPE_CHECKING:
    from kerncast.models.model import Model

# A problem set with sizes that are not multiples of anything, for the ops that have one.
UNALIGNED = "edge"


def data_notes(model: Model) -> list[str]:
    """One sentence each; the first word of a warning is `!`, that of a remark `-`."""
    return [*_isolated(model), *_rules(model), *_failures(model), *_facts(model), *_labels(model), *_rates(model)]


def _isolated(model: Model) -> Iterator[str]:
    found = model.evaluation.get("isolated_times") if EVALUATION in model.manifest.files else None
    if found is not None:
        yield f"! {isolated_sentence(found)}"


def _rules(model: Model) -> Iterator[str]:
    broken = model.evaluation.get("broken_rules", []) if EVALUATION in model.manifest.files else []
    for item in broken:
        share = f"{item['ran']:,} of {item['attempts']:,} rows that break a constraint worked ({item['sentence']})"
        if item["obeyed"]:
            yield f"! {share}: the constraint or these rows are wrong, see `kerncast inspect`; such configs are not chosen"
        else:
            yield f"! {share}: the model does not apply this constraint"


def _failures(model: Model) -> Iterator[str]:
    family, failures = model.family, model.manifest.data.failures
    if not (family.config.parameters and family.can_fail and model.manifest.data.rows):
        return
    if 0 < failures < FEWEST_FAILURES:
        yield (
            f"! {counted(failures, 'row')} failed; nothing is learned from fewer than {FEWEST_FAILURES}, so a config that "
            "failed on a problem may be chosen for it: measure more that fail, or declare a constraint"
        )
    if not failures:
        rules = len(family.config.constraints)
        some = f"the {rules} constraint{'s' * (rules > 1)} of {family.id}"
        known = some if rules else f"{family.id} has no constraints either: nothing"
        yield (
            f"! no row failed, so the model cannot tell what will not run: {known} must rule it out; keep failed attempts in "
            "the data (their status says why), or declare a constraint"
        )


def _facts(model: Model) -> Iterator[str]:
    op = model.family.op
    collect = f"`kerncast collect {word(model.family.id)} --problems {UNALIGNED}`"
    how = collect if UNALIGNED in named_sets(op) else "add some to the data"
    for name, fact in model.manifest.facts.items():
        yield (
            f"! {name} was always {_one_of(fact_words(fact))}, though {op.name} allows any: with other values an answer is "
            f"out_of_range, for nothing like it was measured; measure some ({how})"
        )


def _one_of(words: str) -> str:
    return {"odd numbers": "an odd number"}.get(words, f"a {words.replace('multiples', 'multiple')}")


def _labels(model: Model) -> Iterator[str]:
    found = []
    for name, parameter in model.family.problem.parameters.items():
        seen = model.manifest.hull.get(name)
        if isinstance(parameter, Categorical | Bool) and seen is not None and len(seen.labels) == 1 and parameter.size > 1:
            label = seen.labels[0]
            found.append(f"{name}={str(label).lower() if isinstance(label, bool) else label}")
    if found:
        refused = "out_of_range" if model.family.config.parameters else "unsupported"
        yield f"- only {' '.join(found)} was measured: with other values an answer is {refused}"


def _rates(model: Model) -> Iterator[str]:
    manifest = model.manifest
    machines = {record.device: manifest.dtypes_on(record.name) or None for record in manifest.devices}
    for note in rates.notes(model.family, machines, own=is_written(model.family)):
        yield f"- {note}"
