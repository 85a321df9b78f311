"""The steps of a routine from measurements to a model in the store. Each can be repeated: a killed run does the last one again.

A step returns facts for `state.json`, or None if it was stopped before its end.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable

import msgspec
import polars as pl

from kerncast.collecting.run import Request, collect
from kerncast.data.dataset import Dataset
from kerncast.data.importers import Options, import_files
from kerncast.errors import BadFile
from kerncast.files.atomic import write_bytes
from kerncast.files.versioned import json_text
from kerncast.models.model import Model
from kerncast.regenerating import planning
from kerncast.regenerating import state as states
from kerncast.regenerating.comparing import NOT_COMPARABLE, compare_fairly
from kerncast.regenerating.routine import Import
from kerncast.regenerating.work import Facts, Work
from kerncast.store.store import Changed, Entry
from kerncast.sweeping import Vectors, write_vectors
from kerncast.training.train import train

# Verdicts besides those of `compare`: there was no old model, or it could not be read.
NEW, UNREADABLE = "NEW", "OLD UNREADABLE"


def _sweeps(work: Work) -> list[planning.AnySweep]:
    device = planning.device_of(planning.runner_of(work.routine, work.family))
    return planning.sweeps_of(work.routine, work.family, device)


def sweep(work: Work) -> Facts | None:
    """Write the vectors."""
    if work.routine.imported is not None:
        return {"files": [str(path) for path in work.routine.imported.paths]}
    # Half a sweep is not worth continuing: a sweep takes seconds, and this machine's numbers may have changed.
    shutil.rmtree(work.vectors, ignore_errors=True)
    (whole,) = _sweeps(work)
    written = write_vectors(whole, work.vectors, progress=work.progress)
    return {"problems": written.problems, "configs": written.configs, "vectors": written.vectors}


def measure(work: Work) -> Facts | None:
    """Measure the vectors that have no row yet, or read what others measured."""
    if work.routine.imported is not None:
        return _imported(work, work.routine.imported)
    sources = [Vectors.open(work.vectors)] if "sweep" in work.routine.steps else _sweeps(work)
    blocks = (block for source in sources for block in source.iter_blocks())
    return _collected(work, "dataset", blocks, sum(source.count() for source in sources), 1.0)


def repeat(work: Work) -> Facts | None:
    """Measure some problems again, at another time: a shared machine is slow for a while, and two times tell the noise."""
    sweeps = _sweeps(work)
    problems, share = planning.repeated(sweeps, work.routine.collect.repeat)
    parts = [
        block.join(problems, on=problems.columns, how="semi", nulls_equal=True, maintain_order="left")
        for one in sweeps
        for block in one.iter_blocks()
    ]
    return _collected(work, "second_dataset", parts, sum(part.height for part in parts), share)


def _collected(work: Work, place: str, blocks: Iterable[pl.DataFrame], total: int, share: float) -> Facts | None:
    wanted, runner = work.routine.collect, planning.runner_of(work.routine, work.family)
    seconds = wanted.second_visit_seconds
    request = Request(
        work.family, runner.name, runner.devices, getattr(work, place),
        planning.measuring_of(work.routine).policy(runner.benchmark), extend=True, options=runner.options,
        build_jobs=wanted.build_jobs, reset_command=runner.reset_words,
        second_visit_seconds=None if seconds is None else share * seconds,
    )  # fmt: skip
    with work.listening() as stop:
        summary = collect(request, blocks, total=total, progress=work.progress, stop=stop)
    if summary.without_a_row or summary.interrupted:
        return None
    return {"device": summary.device, "measured": summary.measured, "statuses": dict(summary.statuses)}


def _imported(work: Work, wanted: Import) -> Facts:
    """The rows of files, which are there whole or not at all."""
    if not work.dataset.exists():
        options = Options(wanted.device, wanted.software, values=wanted.settings)
        import_files(wanted.format, wanted.paths, work.dataset, options, work.progress.say)
    rows = Dataset.open(work.dataset).read(work.family, columns=["device", "status"])
    return {"device": sorted(rows["device"].unique()), "measured": rows.height,
            "statuses": dict(sorted(rows["status"].value_counts().iter_rows()))}  # fmt: skip


def learn(work: Work) -> Facts | None:
    """Train and cross-validate."""
    if not work.model.exists():
        recipe, where = planning.training_of(work.routine), work.routine.train.where
        train(work.datasets, work.model, recipe, family=work.family.id, where=where, progress=work.progress)
    manifest = Model.load(work.model).manifest
    return {"software": list(manifest.software), "rows": manifest.data.rows, "checksum": manifest.checksum}


def judge(work: Work) -> Facts | None:
    """Compare the new model with the one that it would replace."""
    new, routine, judged = Model.load(work.model), work.routine, work.folder / "judged"
    shutil.rmtree(judged, ignore_errors=True)
    facts: Facts = {"asked": _settings(work), "against": _rival(work, new), "old": None}
    try:
        entry = work.store.earlier(new, routine.store.given_name)
        if entry is None:
            return {**facts, "verdict": NEW, "reasons": ["the store had no such model for this device"]}
        facts |= {"old": entry.id, "old_software": list(entry.software)}
        old = entry.load()
    except BadFile as error:
        return {**facts, "verdict": UNREADABLE, "reasons": [str(error)]}
    verdict = compare_fairly(old, new, work.dataset, judged, planning.limits_of(routine), routine.train.where)
    if verdict is None:
        why = "there is no problem on which both models can be judged without having seen it"
        return {**facts, "verdict": NOT_COMPARABLE, "reasons": [why]}
    write_bytes(work.folder / "comparison.json", json_text(verdict.as_json()))
    return {**facts, "verdict": verdict.verdict, "reasons": list(verdict.reasons), "problems": verdict.n}


def replace(work: Work) -> Facts | None:
    """Put the new model into the store, over nothing but the model that it was compared with."""
    new, name = Model.load(work.model), work.routine.store.given_name
    while True:
        compared, origin = work.facts("compare"), _origin(work)
        refused = {"WORSE", NOT_COMPARABLE} | ({"AMBIGUOUS"} if work.routine.compare.strict else set())
        if compared["verdict"] in refused:
            return {"replaced": False, "model": str(work.model)}
        entry = _stored(work, new, origin)
        if entry is not None:  # an earlier run was killed right after adding it
            return {"replaced": True, "model": entry.id}
        try:
            entry = work.store.add(work.model, name=name, replace=True, origin=origin, over=compared["against"][0])
            return {"replaced": True, "model": entry.id}
        except Changed:
            # Another process added a model meanwhile, and this one was not compared with it.
            work.begin("compare")
            work.keep("compare", judge(work) or {})


def forget_old_comparison(work: Work) -> None:
    """Forget a comparison with another model than the one that would be replaced now, or with other limits."""
    state = work.state()
    done = state.of(work.family.id)
    if "compare" not in done:
        return
    same = done["compare"].facts.get("asked") == _settings(work)
    if same and "replace" not in done:
        new = Model.load(work.model)
        same = done["compare"].facts.get("against") == _rival(work, new) or _stored(work, new, _origin(work)) is not None
    if not same:
        states.write(work.root, state.without(work.family.id, "compare"))


def _settings(work: Work) -> Facts:
    """What decides a comparison, besides the models."""
    compare = msgspec.structs.asdict(work.routine.compare)
    return {"store": str(work.store.path.resolve()), "name": work.routine.store.name, **compare}


def _rival(work: Work, new: Model) -> list[str]:
    """What the store holds to compare with: the mark of the entry to replace, and the model found in its place."""
    name = work.routine.store.given_name
    try:
        entry = work.store.earlier(new, name)
        model = "" if entry is None else f"{entry.id} {entry.record.checksum}"
    except BadFile as error:
        model = str(error)
    return [work.store.mark(new, name), model]


def _origin(work: Work) -> dict[str, str]:
    """What the store says of where a model came from."""
    state = work.state()
    return {
        "recipe": f"{state.routine} {work.routine.digest}", "host": state.host, "regenerated": state.begun,
        "kerncast": state.kerncast, "verdict": work.facts("compare")["verdict"],
    }  # fmt: skip


def _stored(work: Work, new: Model, origin: dict[str, str]) -> Entry | None:
    """The new model in the store, if this run has put it there."""
    try:
        entry = work.store.at(new, work.routine.store.given_name)
    except BadFile:
        return None
    own = entry is not None and (entry.record.checksum, entry.record.origin) == (new.manifest.checksum, origin)
    return entry if own else None
