"""`kerncast.train`: train a model on measurements, continue one, or move it to another device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from kerncast.app.api.arguments import (
    HERE,
    Cluster,
    Data,
    Datasets,
    ModelOf,
    RowsOf,
    Seed,
    Where,
    model_of,
    place_of,
    row_conditions,
    spread_over,
)
from kerncast.app.api.read import paths_of
from kerncast.app.api.showing import Wanted, shown
from kerncast.core.device import Device
from kerncast.core.io.arguments import Help, given_path, listed, split_texts
from kerncast.core.io.atomic import scratch_folder
from kerncast.data.dataset import MANIFEST, Dataset
from kerncast.data.formats import ImportOptions
from kerncast.data.importing import import_files, recognised
from kerncast.data.label_shift import NOT_SUSPECT
from kerncast.errors import BadFile, InvalidValue
from kerncast.learning.learners.kinds import kind_of_csv
from kerncast.learning.learners.networks import CsvNetwork, read_network
from kerncast.library import devices
from kerncast.models.ck import TARGETS as CK_TARGETS
from kerncast.models.ck import weights_file
from kerncast.models.model import Model
from kerncast.training.adapting import adapt
from kerncast.training.procedure import Procedure, Recipe
from kerncast.training.train import expand
from kerncast.training.train import train as run

TARGETS = ("relative", "latency", "tflops", "bandwidth")
FORMATS = ("kerncast", "ck")


def train(
    data: Datasets,
    *,
    out: Annotated[str | Path | None, Help("Where to write the model.", metavar="MODELDIR", required=True)] = None,
    kind: Annotated[
        str | None,
        "roofline, linear, mlp, gbdt, deep, or a kind of another package. [default: gbdt, or the kind of `base`]",
        Help(metavar="KIND", names="kinds"),
    ] = None,
    base: Annotated[
        ModelOf | None,
        "Continue from this model with new data; with data of a device that it does not know, move it there.",
        Help(metavar="MODEL", names="models"),
    ] = None,
    device: Annotated[
        Device | str | Path | None,
        "With `base`: the device to move it to, a profile by name or a TOML file. [default: the one that the data record]",
        Help(metavar="NAME|TOML", names="devices"),
    ] = None,
    family: Annotated[
        str | None, Help("Which family, when the data holds several.", metavar="FAMILY", names="families")
    ] = None,
    where: Where = (),
    software: RowsOf = None,
    drop_suspect: Annotated[bool, Help("Leave out rows whose labels fit other rows better (see `kerncast inspect`).")] = False,
    pool: Annotated[bool, Help("Train on several devices, backends, software versions or cache states together.")] = False,
    targets: Annotated[
        str | None,
        f"What to predict: {', '.join(TARGETS)}; with `file_format=ck` several of the last three. [default: relative]",
        Help(metavar="NAME"),
    ] = None,
    raw_target: Annotated[bool, Help("Learn the target itself instead of its logarithm (log1p for tflops).")] = False,
    folds: Annotated[int | None, Help("Cross-validation folds. [default: 5]", least=2)] = None,
    rows: Annotated[
        int,
        "Learn from at most N rows: whole problems, drawn by the seed, of each device about as many. [default: all]",
        Help(metavar="N", least=0),
    ] = 0,
    seed: Seed = 0,
    threads: Annotated[int, Help("Cores to train with, one per fold. [default: all]", least=0)] = 0,
    hard_mining: Annotated[
        int,
        "Give badly chosen problems more weight, in N rounds; reported next to the run without it. [default: 0]",
        Help(metavar="N", least=0),
    ] = 0,
    tune: Annotated[
        int, Help("Try N settings of the knobs that are not given, scored inside each fold. [default: 0]", metavar="N", least=0)
    ] = 0,
    file_format: Annotated[
        str, Help("ck: also write the files of CK Tile's heuristics into MODELDIR.", option="--format", choices=FORMATS)
    ] = "kerncast",
    features: Annotated[
        str | Sequence[str], Help("Learn from these features only, comma-separated. [default: all]", metavar="NAMES")
    ] = (),
    weights: Annotated[
        str | Path | None,
        "Take an mlp from the CSV files of `kerncast export --to csv` instead of fitting one; it is not evaluated.",
        Help(metavar="DIR"),
    ] = None,
    cluster: Cluster = HERE,
    progress: Wanted = "auto",
    **knobs: Any,
) -> Model:
    """Train a model on measurements and evaluate it out of fold, on problems that it has not seen.

    `kind` is gbdt by default, `knobs` are options of that kind: `trees=300`, `hidden=(100, 50)`. The figures are in
    `model.evaluation`; `folds=0` trains without evaluation. If it is interrupted, the same call with the same `out` continues
    with the remaining folds.

    `software` keeps rows of one program: `vllm` (of each device, the newest version that it has), `vllm==0.24.0`. With `pool`,
    rows of several devices and versions are learned from together. `rows` is the most to learn from (0: all): whole problems
    are drawn by the seed, of each device about as many.

    With `base`, that model is continued with new data. If they are of a device that it does not know, or if `device` is named,
    it is moved there: a few dozen rows are enough to begin with, as datasets or as files that `read` reads into one. What the
    base misses on them is learned on top of it and judged out of fold. A model of the rows alone is judged on the same folds
    (from 40 rows on), and kept if it is better by a twentieth. `evaluation["adapted"]` has the errors `before`, `after` and
    `alone`, which one was `kept`, and what was `not_used`: rows of a layout or dtype, say, that the base knows nothing of.

    `features` are those to learn from, if not all of the family's. `weights` is a folder of CSV files as `export` writes them
    for an mlp: that network is taken as it is, and is not evaluated. On a Ray `cluster`, folds and the other fits are its
    tasks; the model is the same.
    """
    if file_format not in FORMATS:
        raise InvalidValue(f"`file_format` is kerncast or ck, got '{file_format}'")
    if device is not None and base is None:
        raise InvalidValue(
            "the rows say which device they were measured on; `device` is where to move `base` to: choose rows with "
            "`where=device=…`, add a column 'device' to a frame, or read it with `kerncast.read(frame, device=…)`"
        )
    if base is not None and folds:
        raise InvalidValue(f"`folds={folds}` does not go with `base`, which is judged on one fixed hold-out: leave it out")
    known = None if base is None else model_of(base)
    conditions = (*row_conditions(where, software), *((NOT_SUSPECT,) if drop_suspect else ()))
    fitting = {
        "kind": known is not None and kind not in (None, known.manifest.kind), "targets": targets, "raw_target": raw_target,
        "folds": folds, "rows": rows, "hard_mining": hard_mining, "tune": tune, "file_format": file_format == "ck",
        "features": features, "weights": weights is not None, "on": cluster.is_ray,
    }  # fmt: skip
    with scratch_folder() as folder:
        paths = paths_of(data if known is None else _as_datasets(data, Path(folder), device), family)
        if known is not None and (device is not None or _is_elsewhere(known, paths)):
            about = next((name for name, value in (fitting | knobs).items() if value), None)
            if about is not None:
                raise InvalidValue(f"`{about}` is about fitting, and `base` is moved to another device: leave it out")
            profile = device if isinstance(device, Device) or device is None else devices.get(str(device))
            with shown(progress) as show:
                return adapt(known, paths, place_of(out, "model"), device=profile, where=conditions, seed=seed, progress=show)
        network = None if weights is None else _network(weights, kind, known is not None, fitting)
        first, others = _targets(targets, file_format, known)
        wanted = split_texts(features)
        if wanted and file_format == "ck":
            raise InvalidValue("`features` does not go with `file_format=ck`, whose features are fixed: leave one out")
        recipe = Recipe(
            kind=kind or usual_kind(known, weights),
            knobs={name: value for name, value in knobs.items() if value is not None},
            target=first or None,
            target_log=False if raw_target else None,
            folds=folds or Recipe.folds,
            seed=seed,
            threads=threads,
            hard_mining=hard_mining,
            tune=tune,
            features=wanted,
            rows=rows,
        )
        # An unknown kind or knob is refused before the data are read.
        Procedure(recipe).options()
        Procedure(recipe).tuned_knobs()
        with spread_over(cluster) as spread, shown(progress) as show:
            return run(
                paths, place_of(out, "model"), recipe, family=family, where=conditions, pool=pool, warm_start=known,
                ck=others if file_format == "ck" else None, no_folds=folds == 0, weights=network, spread=spread, progress=show,
            )  # fmt: skip


def usual_kind(base: Model | None, weights: object) -> str:
    """The kind of model that is trained unless one is named."""
    return kind_of_csv() if weights is not None else Recipe.kind if base is None else base.manifest.kind


def _targets(targets: str | None, file_format: str, base: Model | None) -> tuple[str, tuple[str, ...]]:
    """The target, and the others of CK's files. If none is given, these are those of the forests to continue, else TFLOPS."""
    given = targets or ""
    if not given and file_format == "ck":
        own = None if base is None else base.manifest.target
        more = (
            () if base is None else (name for name in CK_TARGETS if name != own and weights_file(base.path, name) is not None)
        )
        given = ",".join([own or "tflops", *more])
    first, *others = (name.strip() for name in given.split(","))
    if others and file_format != "ck":
        raise InvalidValue(f"one model has one target, got {targets}: train one model per target, or use `file_format=ck`")
    strange = [name for name in (first, *others) if name and name not in TARGETS]
    if strange:
        raise InvalidValue(f"`targets` is one of {', '.join(TARGETS)}, got '{strange[0]}'")
    return first, tuple(others)


def _network(weights: str | Path, kind: str | None, continues: bool, fitting: Mapping[str, Any]) -> CsvNetwork:
    """The network that is given instead of being fitted; options that are about fitting do not go with it."""
    if kind not in (None, kind_of_csv()):
        raise InvalidValue(f"`weights` are those of an {kind_of_csv()}, but `kind` is {kind}: leave one out")
    about = {"base": continues, **{name: fitting[name] for name in ("folds", "hard_mining", "tune", "file_format")}}
    for name in (name for name, is_given in about.items() if is_given):
        raise InvalidValue(f"`{name}` is about fitting, and `weights` are taken as they are: leave one out")
    return read_network(given_path(weights, "`weights`: a folder of CSV files", "write one with `kerncast.export`"))


def _is_elsewhere(base: Model, paths: Sequence[Path]) -> bool:
    """Whether the data are of other devices than the base knows."""
    named = {record.name for path in expand(paths) for record in Dataset.of_manifest(path).contents.devices}
    return bool(named) and named.isdisjoint(record.name for record in base.manifest.devices)


def _as_datasets(data: Data, folder: Path, device: Device | str | Path | None) -> list[Any]:
    """The data, with tables of other tools as datasets."""
    return [
        _imported(Path(item), folder / str(number), device) if isinstance(item, str | Path) and _is_table(Path(item)) else item
        for number, item in enumerate(listed(data))
    ]


def _is_table(path: Path) -> bool:
    """Whether a path is neither a dataset nor a folder of datasets, and has to be imported."""
    return path.exists() and not (path / MANIFEST).is_file() and not (path.is_dir() and any(path.glob(f"*/{MANIFEST}")))


def _imported(path: Path, out: Path, device: Device | str | Path | None) -> Path:
    """A table of another tool as a dataset."""
    named = device.name if isinstance(device, Device) else None if device is None else str(device)
    try:
        format_name = recognised([path])
    except InvalidValue as error:
        raise InvalidValue(
            f"{path} is not a table that is recognised: make a dataset of it with `kerncast import`, and train with that"
        ) from error
    dataset: Dataset = import_files(format_name, [path], out, ImportOptions(device=named))
    if not dataset.rows:
        raise BadFile(f"{path} has no rows: there is nothing to learn from")
    return dataset.path
