"""`kerncast.export` and `kerncast.Selector`: choosing here, and the files of a model for programs without Python."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from kerncast.answering.exporters import LossOf, MostOf, exporter_of, options_of
from kerncast.answering.inputs import offering
from kerncast.answering.selector import Selector as Base
from kerncast.app.api.arguments import model_of
from kerncast.app.api.showing import Wanted, shown
from kerncast.core.device import Device
from kerncast.core.io.arguments import Help, texts
from kerncast.core.io.atomic import refuse_existing
from kerncast.data.dataset import MANIFEST, Dataset
from kerncast.data.formats import writers
from kerncast.errors import InvalidValue
from kerncast.models.answer import Tier, named_tiers
from kerncast.models.candidates import refuse_no_candidates
from kerncast.models.model import Model
from kerncast.native.lower import refuse_several_devices
from kerncast.native.tiers.build import TierOptions


class ShownSelector(Base):  # noqa: D101 as its base, which has the options
    __doc__ = Base.__doc__
    __signature__ = inspect.signature(Base)

    def __init__(self, model: Model | str | Path, *, progress: Wanted = "auto", **options: Any) -> None:
        with shown(progress) as show:
            super().__init__(model_of(model), progress=show, **options)
        if self._several:  # each device has a display of its own, when it is prepared
            self._options["progress"] = progress


# What `kerncast.Selector` is.
Selector = ShownSelector
Selector.__name__ = Selector.__qualname__ = "Selector"


PORTFOLIO = Tier.PORTFOLIO.value


@dataclass(frozen=True)
class PortfolioOptions:
    """What `to=portfolio` takes."""

    loss: LossOf = TierOptions.loss
    max_configs: MostOf = TierOptions.most
    build_list: Annotated[
        str | Path | None,
        "the kernels' names as the data have them, one per line: what a build has to contain.",
        Help(metavar="FILE"),
    ] = None


def export(
    source: Annotated[Model | Dataset | str | Path, Help(metavar="MODEL|DATASET", names="models_and_data")],
    *,
    to: Annotated[
        str | None,
        "Of a model: C99 with a C++17 header, a file that a C runtime loads, a JSON table of choices, CSV (the lines of a "
        "linear model; a folder with the weights of an mlp), or files for PyTorch's Inductor. Of a dataset: a table, or a "
        "file for another tool. Of either: the portfolio, the few configs that are enough. [default: c, csv]",
        Help(metavar="TARGET", names="export_targets"),
    ] = None,
    out: Annotated[str | Path | None, Help("The path to write; it must not exist.", metavar="DIR|FILE")] = None,
    device: Annotated[
        Device | str | None,
        Help("Which device, of a model that was trained on several together.", metavar="NAME", names="devices"),
    ] = None,
    family: Annotated[
        str | None, Help("With DATASET: which family, if it holds several.", metavar="NAME", names="families")
    ] = None,
    where: Annotated[
        str | Sequence[str],
        Help("With DATASET: only some rows, such as dtype=fp16. May be repeated.", metavar="CONDITION", names="conditions"),
    ] = (),
    progress: Wanted = "auto",
    **options: Any,
) -> list[Path]:
    """Write a model or a dataset out for other programs, and return the files.

    `c`: one .c and one .h without any dependency beyond libm, a C++17 header, a self-test with golden vectors, CMakeLists.txt
    and a pkg-config file; it chooses exactly what Python chooses. `blob`: one file that a fixed C runtime loads when a program
    runs, with the same answers; the runtime's sources go to the directory `runtime`, if it is given. `json`: a table of
    choices. `csv`: the lines of a linear model, or a folder with the weights of an mlp (`train` reads it back).
    `lookup-table`: a table for `torch._inductor.lookup_table`, with the `top_k` best configs of each problem (1); keys begin
    with `device_name` if it is given. `autoheuristic`: a module for `torch._inductor.autoheuristic`, with `top_k` kernels in
    each leaf (20).

    `options` are those of the target: `prefix`, `tiers`, `loss` and `max_configs` (of the portfolio), `configs` and `overrides`
    of c and blob, `runtime` of blob, `problems`, `configs` and `overrides` of json, `problems`, `overrides`, `top_k` and
    `device_name` of lookup-table, `loss`, `max_configs` and `top_k` of autoheuristic, `loss`, `max_configs` and `build_list` of
    portfolio.

    A model of several devices is bound to one of them, `device`: to its numbers, its dtypes and the configs that worked there.
    A slim model has the full tier alone, for the others are built from measurements.

    A dataset is written as `csv` or `parquet`, a table with a mapping file that `read` takes; as `t4`, `kernel-tuner` or
    `tt-sweep` (see `Dataset.export`). Of a model or a dataset, `portfolio` is the smallest set of configs that is enough, as
    JSON for sweeps, with the kernels' names in `build_list` (see `Selector.portfolio`); the other kernels need not be built.

    `overrides` is an `overrides.toml` (or a mapping of the same form) that says which kernels exist and which choices are
    fixed: the model need not be trained again for it. `configs` are the configs to choose from, instead of those that worked in
    training (see `Selector`); there is only the full tier of them.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if to == PORTFOLIO:
        for name in given.keys() - {field.name for field in fields(PortfolioOptions)}:
            raise InvalidValue(f"`{name}` does not go with `to={PORTFOLIO}`: leave it out")
        places = (out, given.get("build_list"))
        Selector.portfolio(source, family=family, where=texts(where), out=out, **given)
        return [Path(place) for place in places if place is not None]
    if out is None:
        raise InvalidValue("an export needs `out`, the path to write")
    if isinstance(source, Dataset) or (not isinstance(source, Model) and (Path(source) / MANIFEST).is_file()):
        if to is not None and to not in writers():
            held, forms = getattr(source, "path", source), ", ".join((*writers(), PORTFOLIO))
            raise InvalidValue(f"`to={to}` writes a model, and {held} is a dataset: use one of {forms}")
        dataset = source if isinstance(source, Dataset) else Dataset.open(str(source))
        return dataset.export(out, to=to or "csv", family=family, where=texts(where))
    for name in (name for name, is_given in (("family", family is not None), ("where", bool(texts(where)))) if is_given):
        raise InvalidValue(f"`{name}` is for a dataset; a model has one family and its own rows: leave it out")
    if "build_list" in given:
        raise InvalidValue(f"`build_list` is only for `to={PORTFOLIO}`: leave it out")
    place, exporter = Path(out), exporter_of(to or "c")
    chosen = options_of(exporter, given)
    if given.get("top_k", 1) < 1:
        raise InvalidValue(f"`top_k` must be at least 1, got {given['top_k']}")
    if "tiers" in given:
        named_tiers(given["tiers"])  # refused before the model is read
    exporter.check(place)
    refuse_existing(place)
    loaded = model_of(source)
    if device is not None:
        loaded = loaded.on(device)
    if exporter.one_device:
        refuse_several_devices(loaded)  # before the tiers are built
    with shown(progress) as show:
        if "configs" in given:
            loaded = offering(loaded, given["configs"], progress=show)
        refuse_no_candidates(loaded)
        return exporter.write(loaded, place, chosen, show)
