"""What kerncast makes of damaged files: every kind is cut short and has bits flipped, and is then used as people use it.

    counts = [damaged(subject, folder, cuts=200, flips=300) for subject in subjects(every_artefact(folder), folder)]

A use that raises a `KerncastError` has named the damage. One that gives the same answer as before has not been touched by it,
or has repaired it. Anything else is wrong: an error of another type is a traceback for the user, another answer is a silent
difference.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
from tests.support.artefacts import SHAPE, collection_request, swept, trained_model, vectors
from tests.support.damaging import Counts, Subject, Use, damaged

import kerncast
from kerncast.answering.measure import ChoiceCache
from kerncast.answering.selector import Selector
from kerncast.core.op import Problem
from kerncast.data.dataset import Dataset
from kerncast.data.formats.table import read_mapping
from kerncast.data.journal import NAME as JOURNAL
from kerncast.data.journal import STATE
from kerncast.evaluating.results import read_predictions
from kerncast.library.devices import read_profile
from kerncast.library.registry import FAMILIES
from kerncast.measuring.backends.cpu.machine import keep_rates, kept_rates
from kerncast.measuring.sweeping import Vectors
from kerncast.models.model import Model
from kerncast.models.store.store import Store
from kerncast.native.build import compiled
from kerncast.native.overrides import read_overrides
from kerncast.native.tiers.build import TierOptions, keep_tiers, kept_tiers, plain_tiers, tiers_of, write_tiers
from kerncast.regenerating import loop as state
from kerncast.regenerating import routine
from kerncast.testing.backends import Instant


def subjects(made: Mapping[str, Path], folder: Path) -> list[Subject]:
    """Every kind of file of some artefacts (`every_artefact`), with its uses; `folder` holds what is made besides."""
    found = [*_datasets(made), *_collections(made), *_models(made, folder), *_stores(made), *_vectors(made), *_others(made)]
    return [*found, *_caches(made, folder)]


def _verified(path: Path) -> Any:
    """`verify`: damage that it names raises, as it does for the other uses."""
    found = kerncast.inspect(path, verify=True, progress=False)
    faults = [fault for item in found.artefacts for fault in item.faults]
    if faults:
        raise kerncast.BadFile(faults[0].sentence)
    return [(item.kind, item.checks) for item in found.artefacts]


def _merged(path: Path) -> str:
    out = path.with_name(f"{path.name}.merged")
    try:
        return Dataset.merge([path], out).digest
    finally:
        shutil.rmtree(out, ignore_errors=True)


def _trained(path: Path) -> Any:
    out = path.with_name(f"{path.name}.trained")
    try:
        model = kerncast.train(path, out=out, kind="roofline", folds=0, progress=False)
        return model.manifest.data, model.predict(SHAPE, device=model.device).time_ns
    finally:
        shutil.rmtree(out, ignore_errors=True)


def _read(path: Path) -> pl.DataFrame:
    return Dataset.open(path).read()


def _told(path: Path) -> Any:
    return json.loads(json.dumps(Dataset.open(path).inspect(), default=str))


def _datasets(made: Mapping[str, Path]) -> Iterator[Subject]:
    uses: dict[str, Use] = {"read": _read, "inspect": _told, "verify": _verified, "merge": _merged}
    data, model = made["model"].with_name("model.data"), made["model"]
    (part,) = data.glob("rows/*/*/*.parquet")

    def judged(path: Path) -> Any:
        return kerncast.evaluate(model, path, include_seen=True, tiers=False, progress=False).as_json()["overall"]

    seldom: dict[str, Use] = {"train": _trained, "evaluate": judged}
    yield Subject("rows of a dataset", data, str(part.relative_to(data)), uses, seldom)
    yield Subject("dataset.json", data, "dataset.json", uses, seldom)
    imported = made["dataset"]
    beside: dict[str, Use] = {
        "skipped": lambda path: Dataset.open(path).skipped.frame(),
        "extra": lambda path: Dataset.open(path).extra(),
        "verify": _verified,
        "merge": _merged,
    }
    yield Subject("skipped.parquet", imported, "skipped.parquet", beside)
    yield Subject("columns beside the rows", imported, "extra/part-00000.parquet", beside)
    yield Subject("dataset.json of an import", imported, "dataset.json", {**uses, **beside})


def _collections(made: Mapping[str, Path]) -> Iterator[Subject]:
    def resumed(path: Path) -> Any:
        from kerncast.measuring.run import collect

        collect(collection_request(path), [vectors()], total=24)
        return sorted(Dataset.open(path).read().select("key", "status").rows())

    def kept(whole: Any, after: Any) -> bool:
        """A torn tail is left out: the last line, or the last two if the newline between them is damaged."""
        if isinstance(whole, pl.DataFrame):
            return whole.height - 2 <= after.height < whole.height and whole.head(after.height).equals(after)
        return True  # the reports count these rows; `read` above checks them

    uses: dict[str, Use] = {"read": _read, "inspect": _told, "verify": _verified}
    seldom: dict[str, Use] = {"collect --resume": resumed}
    yield Subject("journal", made["unfinished collection"], JOURNAL, uses, seldom, repaired=kept)
    yield Subject("collection.json", made["unfinished collection"], STATE, uses, seldom)


def _models(made: Mapping[str, Path], folder: Path) -> Iterator[Subject]:
    def predicted(path: Path) -> Any:
        return Model.load(path).predict(SHAPE).as_json()

    def chosen(path: Path) -> Any:
        model = Model.load(path)
        return Selector(model, tiers=plain_tiers(model), compile=False).select(SHAPE, "full").as_json()

    def exported(path: Path) -> Any:
        out = path.with_name("exported.json")
        try:
            kerncast.export(path, to="json", out=out, problems=[SHAPE], progress=False)
            return out.read_bytes()
        finally:
            out.unlink(missing_ok=True)

    def asked(path: Path) -> Any:
        return repr(Model.load(path)), Model.load(path)._repr_html_()

    uses: dict[str, Use] = {"predict": predicted, "select": chosen, "show": asked, "verify": _verified}
    for kind in ("gbdt", "mlp", "linear"):
        place = made["model"]
        if kind != "gbdt":
            place = folder / f"made-{kind}"
            trained_model(place, kind)
        for file in sorted(item.name for item in place.iterdir()):
            if file.endswith(".lgbm.gz") and file != "time.0.lgbm.gz":
                continue  # forests are files of one kind
            # Models differ in their weights only; the other files are those of the first.
            if kind == "gbdt" or file.endswith((".npz", ".gz")) or file not in {item.name for item in made["model"].iterdir()}:
                name = f"{file} of {kind}" if kind != "gbdt" else file
                yield Subject(name, place, file, uses, {"export": exported} if kind == "gbdt" else {})


def _stores(made: Mapping[str, Path]) -> Iterator[Subject]:
    (entry,) = made["store"].rglob("entry.json")

    def found(path: Path) -> Any:
        model = Store.open(path).find("gemm", device="a100").load()
        return model.predict(SHAPE).as_json()

    def listed(path: Path) -> Any:
        return [item.as_json() for item in Store.open(path).entries()]

    yield Subject(
        "entry.json", made["store"], str(entry.relative_to(made["store"])),
        {"find": found, "list": listed, "verify": _verified},
    )  # fmt: skip


def _vectors(made: Mapping[str, Path]) -> Iterator[Subject]:
    def blocks(path: Path) -> pl.DataFrame:
        return pl.concat(list(Vectors.open(path).iter_blocks()))

    def again(form: str, path: Path) -> pl.DataFrame:
        swept(path, form)
        return blocks(path)

    for form in ("parquet", "json", "tt-sweep"):
        place = made[f"vectors {form}"]
        part = next(item for item in sorted(place.rglob("*")) if item.is_file() and item.name != "vectors.json")
        uses: dict[str, Use] = {"read": blocks, "verify": _verified}
        seldom: dict[str, Use] = {"sweep again": partial(again, form)}
        yield Subject(f"vectors as {form}", place, str(part.relative_to(place)), uses, seldom)
        if form == "parquet":
            yield Subject("vectors.json", place, "vectors.json", uses, seldom)


def _others(made: Mapping[str, Path]) -> Iterator[Subject]:
    verify: dict[str, Use] = {"verify": _verified}
    for file in sorted(item.name for item in made["exported C"].iterdir()):
        yield Subject(f"{file} of an export", made["exported C"], file, verify)
    yield Subject("table of choices", made["table of choices"], "", verify)

    def remembered(path: Path) -> Any:
        family = FAMILIES.get("gemm/triton")
        return [(choice, time) for choice, time in _choices(ChoiceCache(family, Instant(), path), family)]

    yield Subject("measured choices", made["measured choices"], "", {"select --measure": remembered, **verify})
    yield Subject("predictions", made["predictions"], "", {"read": read_predictions, **verify})
    yield Subject("state of a regeneration", made["regeneration"], state.FILE, {"regenerate": state.read, **verify})
    yield Subject("printed evaluation", made["evaluation"], "", verify, by_hand=True)
    readers: dict[str, Use] = {
        "overrides": read_overrides, "mapping": read_mapping, "device profile": read_profile,
        "routine": lambda path: routine.load(str(path)),
    }  # fmt: skip
    for name, read in readers.items():
        yield Subject(f"TOML: {name}", made[name], "", {"read": read, **verify}, by_hand=True)


def _choices(cache: ChoiceCache, family: Any) -> Iterator[tuple[Any, float]]:
    for size in (64, 128):
        found = cache.get(Problem(family, {**SHAPE, "M": size}))
        if found is not None:
            yield found


def _caches(made: Mapping[str, Path], folder: Path) -> Iterator[Subject]:
    """What can be made again: damage is repaired by making it again."""
    model = Model.load(made["model"])
    kept = folder / "tiers"
    keep_tiers(kept, tiers_of(model, TierOptions()))

    def tiers(path: Path) -> Any:
        found = kept_tiers(path / "tiers.npz", model)
        if found is None:
            return None
        write_tiers(path.with_name("tiers.again.npz"), found)
        return path.with_name("tiers.again.npz").read_bytes()

    for file in ("tiers.npz", "tiers.sum"):
        yield Subject(f"cache of {file}", kept, file, {"select": tiers}, repaired=lambda whole, after: after is None)

    rates = folder / "rates"
    keep_rates(rates, {"clock_mhz": 2500.0, "fp32": 0.25, "bandwidth_gb_s": 12.5})
    yield Subject("cache of measured rates", rates, "", {"collect": kept_rates}, repaired=lambda whole, after: after is None)

    def object_file(path: Path) -> Any:
        before = os.environ.get("KERNCAST_CACHE")
        os.environ["KERNCAST_CACHE"] = str(path)
        try:
            made = compiled("one", "int kc_one(void) { return 1; }", "")
            return None if made is None else made.read_bytes()
        finally:
            _restore("KERNCAST_CACHE", before)

    cache = folder / "picker"
    cache.mkdir(mode=0o700)
    if object_file(cache) is not None:
        for made_file in sorted(cache.rglob("artefact.*")):
            name = f"cache of compiled models: {made_file.name}"
            yield Subject(name, cache, str(made_file.relative_to(cache)), {}, {"select": object_file})


def _restore(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name)
    else:
        os.environ[name] = value


def all_counts(made: Mapping[str, Path], folder: Path, *, cuts: int, flips: int, seed: int = 0) -> list[Counts]:
    """Every kind, one after the other."""
    folder.mkdir(exist_ok=True)
    listed: Sequence[Subject] = subjects(made, folder)
    work = folder / "work"
    work.mkdir()
    return [damaged(subject, work, cuts=cuts, flips=flips, seed=seed) for subject in listed]
