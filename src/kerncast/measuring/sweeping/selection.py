"""Which configs of a family a sweep takes: all, a sample per problem, kernels of a file or a build, what Inductor offers.

A kernel's name says more than a config: it is built for one dtype and one layout (a convolution: for two or three dimensions),
and runs only problems of that kind. Inductor's lists are asked for `gemm/triton`, and for the plain template with the library's
kernel beside it: other templates are not run by the backend `triton`. torch is imported when the first problem is asked about;
no GPU is needed for NVIDIA's lists.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl

from kerncast.core.device import Device
from kerncast.core.dtypes import BYTES
from kerncast.core.io.foreign import JSON, load_json
from kerncast.core.op import Family
from kerncast.core.parameters import Value
from kerncast.data.dataset import MANIFEST, Dataset
from kerncast.data.formats.ck_tile import parse_gemm_kernel, refuse_long_name
from kerncast.data.schema import LABEL, column_type
from kerncast.errors import BadFile, InvalidValue, KerncastError, NotFound
from kerncast.library.families.gemm_triton import config_of
from kerncast.library.families.grouped_conv_ck_tile import parse_conv_kernel
from kerncast.library.problems.files import complete, is_table, read_points

FAMILY = "gemm/triton"
SPACES = {"default": "DEFAULT", "exhaustive": "EXHAUSTIVE"}
SETTING = "max_autotune_gemm_search_space"
# Where torch has its heuristics, the newest place first.
HOMES = ("torch._inductor.template_heuristics.triton", "torch._inductor.template_heuristics")
ROCM_CHIPS, CHIPS = "ROCmConfigHeuristic", "CUDAConfigHeuristic"


@dataclass(frozen=True)
class Offered:
    """Inductor's search space, `default` or `exhaustive`."""

    space: str

    @property
    def identity(self) -> str:
        """What decides the configs, besides the problem and the device."""
        return f"inductor {self.space} torch {_torch('torch').__version__}"

    def configs(self, problem: Mapping[str, Any], device: Device) -> list[dict[str, Any]]:
        """For one problem, the library's kernel first."""
        configs = [{"kind": "library"}]
        op = "bmm" if problem["batch"] > 1 else "addmm" if problem.get("bias") else "mm"
        facts = {"dtype_size": int(BYTES[str(problem["dtype"])]), "op_name": op, "has_int8_tensor": problem["dtype"] == "int8"}
        with _heuristic(self.space, device) as heuristic:
            listed = heuristic.get_exhaustive_mm_configs() if self.space == "exhaustive" else heuristic.get_mm_configs()
            known = inspect.signature(listed).parameters
            facts = {name: value for name, value in facts.items() if name in known}
            for item in listed(problem["M"], problem["N"], problem["K"], **facts):
                arguments = {**item.kwargs, "num_stages": item.num_stages, "num_warps": item.num_warps}
                config = config_of("triton::mm", arguments)
                configs += [] if config is None or config in configs else [config]
        return configs


def offered(family: Family, space: str) -> Offered:
    """Inductor's search space by name, for the family that it is of."""
    if family.id != FAMILY:
        raise InvalidValue(
            f"`configs=inductor` lists what Inductor offers for {FAMILY}, not for {family.id}: use all or sample:N"
        )
    if space not in SPACES:
        raise InvalidValue(f"Inductor's search space is {' or '.join(SPACES)}, got '{space}'")
    return Offered(space)


def _torch(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise NotFound(f"`configs=inductor` asks PyTorch, and {error}: pip install 'kerncast[triton]'") from error


@contextlib.contextmanager
def _heuristic(space: str, device: Device) -> Iterator[Any]:
    """Inductor's heuristic of a device, with what it needs: a search space, and a graph that knows sizes."""
    config, virtual = _torch("torch._inductor.config"), _torch("torch._inductor.virtualized").V
    sizes = _torch("torch._inductor.sizevars").SizeVarAllocator()
    name = ROCM_CHIPS if (device.architecture or device.name).startswith("gfx") else CHIPS
    setting = config.patch({SETTING: SPACES[space]}) if hasattr(config, SETTING) else contextlib.nullcontext()
    with setting, virtual.set_graph_handler(SimpleNamespace(sizevars=sizes)):
        for home in HOMES:
            with contextlib.suppress(ImportError, AttributeError):
                kind = getattr(import_module(home), name)
                break
        else:
            raise NotFound(f"this torch has no {name}, which lists Inductor's configs: use torch 2.7 or later")
        try:
            heuristic = kind()
        except RuntimeError as error:
            # AMD's lists depend on what the driver says.
            raise KerncastError(
                f"Inductor cannot list its configs for {device.name} here ({error}): ask on a machine with it"
            ) from error
        yield heuristic


# What CK's build systems put before the name of a kernel: a GEMM is a program of its own.
PROGRAM = "benchmark_"
# A convolution is a library, whose name has the parts of the kernel's in another order, and the warps besides.
LIBRARY = re.compile(
    r"libdispatcher_conv_([a-z_]+)_([23])d_([a-z0-9]+)_(\d+x\d+x\d+)_\d+x\d+x\d+_\d+x\d+x\d+_(\w+)\.so(?:\.\d+)*"
)
NINJA = "build.ninja"
TARGET = re.compile(rb"build ((?:[^\s:|$]|\$.)+)")
# Folders of a build that hold no programs; and how many entries of a folder are looked at.
SKIPPED = {"CMakeFiles", ".git", "_deps"}
MOST_ENTRIES = 2_000_000
DIMENSIONS = "dimensions"
GEMM = "gemm/ck_tile"
# What a convolution of two dimensions has for the third.
FLAT = {"Di": 1, "Z": 1, "pad_d": 0}


@dataclass(frozen=True)
class Named:
    """A kernel as its name says it."""

    name: str
    config: Mapping[str, Value]
    key: Mapping[str, Value]
    """What it is built for: `dtype`, and `layout` or `dimensions`."""

    def refusal(self, problem: Mapping[str, Any]) -> str | None:
        """Why it does not run a problem, in words; None: it is built for problems of this kind."""
        deep = any(problem.get(name, flat) != flat for name, flat in FLAT.items())
        asked = {DIMENSIONS: 3 if deep else 2, **problem}
        for name, built in self.key.items():
            if asked.get(name) != built:
                return f"the kernel is built for {name}={built}, and the problem has {name}={asked.get(name)}"
        return None


@dataclass(frozen=True)
class NamedKernels:
    """Kernels of one family, in the order in which they were listed."""

    family: Family
    rows: pl.DataFrame
    """`config.*`, `label`, and the columns of `keys`; one row for each config that is built for a kind of problem."""
    source: str
    """Where they are from, in words."""
    left_out: str = ""
    """What else was there, in words."""

    @cached_property
    def keys(self) -> list[str]:
        """The columns that say which problems a kernel is built for."""
        return [name for name in self.rows.columns if name != LABEL and not name.startswith("config.")]

    @property
    def configs(self) -> pl.DataFrame:
        """The distinct configs, by the bare names of their parameters."""
        names = [f"config.{name}" for name in self.family.config.parameters]
        distinct = self.rows.select(names).unique(maintain_order=True)
        return distinct.rename(lambda name: name.removeprefix("config."))

    def kinds_of(self, problems: pl.DataFrame, prefix: str = "") -> pl.DataFrame:
        """The columns of `keys` for some problems, whose columns have `prefix` before the names of parameters."""
        deep = (pl.col(f"{prefix}Di") > 1) | (pl.col(f"{prefix}Z") > 1) | (pl.col(f"{prefix}pad_d") > 0)
        known = {DIMENSIONS: pl.when(deep).then(3).otherwise(2).cast(pl.Int64)}
        return problems.select(known.get(name, pl.col(f"{prefix}{name}")).alias(name) for name in self.keys)

    def built_for(self, kind: Mapping[str, Any]) -> NamedKernels:
        """The kernels for one kind of problem."""
        kept = self.rows.filter(*(pl.col(name) == value for name, value in kind.items() if name in self.keys))
        return NamedKernels(self.family, kept, self.source, self.left_out)

    def __str__(self) -> str:
        kinds = ", ".join(" ".join(map(str, row)) for row in self.rows.select(self.keys).unique(maintain_order=True).rows())
        return f"{self.rows.height:,} kernels of {self.family.id} from {self.source} ({kinds})"


def has_named_kernels(family: Family) -> bool:
    """Whether the names of a family's kernels say their configs, and what they are built for."""
    return family.id == GEMM or (family.id.startswith("grouped_conv_") and family.id.endswith("/ck_tile"))


def reader(family: Family, *, as_named: bool = False) -> Callable[[str], Named]:
    """What reads the names of a family's kernels.

    `as_named` takes the pad flags of a GEMM from its name, as a build does; otherwise kernels of the pipeline mem pad.
    """
    if not has_named_kernels(family):
        raise InvalidValue(
            f"kernels of {family.id} have no names that say their config: name CK Tile's kernels, or list configs in a table "
            "(`configs=portfolio:FILE`)"
        )

    def read(text: str) -> Named:
        refuse_long_name(text)
        name = _kernel_name(text) or text
        if family.id == GEMM:
            gemm = parse_gemm_kernel(name, as_named=as_named)
            return Named(name, gemm.config, {"dtype": gemm.dtype, "layout": gemm.layout})
        conv = parse_conv_kernel(name)
        if conv.family is not family:
            raise InvalidValue(f"'{name}' is a kernel of {conv.family.id}, not of {family.id}")
        return Named(name, conv.config, {"dtype": conv.dtype, DIMENSIONS: conv.dimensions})

    return read


def kernels_named(family: Family, names: Iterable[tuple[str, str]], source: str, *, as_named: bool = False) -> NamedKernels:
    """The kernels with these names, each with its place for errors; a name that cannot be read is refused."""
    read = reader(family, as_named=as_named)
    found: list[Named] = []
    for place, name in names:
        try:
            found.append(read(name))
        except InvalidValue as error:
            raise BadFile(f"{source}, {place}: {error}") from error
    if not found:
        raise BadFile(f"{source} lists no kernel: give the names, one on each line")
    return NamedKernels(family, _frame(family, found), source)


def read_kernel_list(family: Family, path: Path, *, as_named: bool = False) -> NamedKernels:
    """The kernels that a file lists: names on lines of their own (`#` begins a comment), or a JSON list of names."""
    try:
        text = JSON.read(path).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        said = (error.strerror or str(error)) if isinstance(error, OSError) else "it is not text"
        raise BadFile(
            f"cannot read {path} as a list of kernels ({said}): give one name on each line, or a JSON list"
        ) from error
    if text.lstrip().startswith(("[", "{")):
        return kernels_named(family, _json_names(path, text), str(path), as_named=as_named)
    lines = ((number, line.partition("#")[0].strip()) for number, line in enumerate(text.splitlines(), 1))
    return kernels_named(family, ((f"line {number}", name) for number, name in lines if name), str(path), as_named=as_named)


def _json_names(path: Path, text: str) -> Iterator[tuple[str, str]]:
    try:
        items = load_json(text.encode())
    except ValueError as error:
        raise BadFile(f"{path} is not JSON ({error}): give a list of kernel names") from error
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise BadFile(f'{path} must be a JSON list of kernel names, like ["gemm_fp16_rcr_…"]')
    return ((f"entry {number}", item.strip()) for number, item in enumerate(items, 1))


# -- a build folder ----------------------------------------------------------------------------------------


def read_build(family: Family, folder: Path, *, as_named: bool = False) -> NamedKernels:
    """The kernels that are built in a folder of CK Tile's build; if none is, those that its ninja file can build."""
    read = reader(family, as_named=as_named)
    if not folder.is_dir():
        raise BadFile(f"{folder} is not a folder: name the build folder of composable_kernel, the one with {NINJA} or bin/")
    try:
        left, names = MOST_ENTRIES, set[str | None]()
        for _, folders, files in os.walk(folder):  # links to folders are not followed
            folders[:] = sorted(name for name in folders if name not in SKIPPED)
            left -= len(files) + len(folders)
            if left < 0:
                raise BadFile(
                    f"{folder} has more than {MOST_ENTRIES:,} files: name the folder with the benchmarks itself, like bin/"
                )
            names.update(map(_kernel_name, files))
        built = sorted(name for name in names if name is not None)
        source = f"{len(built):,} benchmarks built in {folder}"
        if not built and (folder / NINJA).is_file():
            built = sorted(set(_targets(folder / NINJA)))
            source = f"{len(built):,} benchmark targets of {folder / NINJA}, none of which is built"
    except OSError as error:
        raise BadFile(f"cannot read {error.filename or folder} ({error.strerror or error})") from error
    found, refused, first = [], 0, ""
    for name in built:
        try:
            found.append(read(name))
        except InvalidValue as error:
            refused, first = refused + 1, first or " ".join(str(error).split())
    if not found:
        raise BadFile(
            f"{folder} has no benchmark of {family.id}: "
            + (f"{refused:,} other names, of which the first: {first}" if refused else f"no {PROGRAM}gemm_* program, no "
               f"libdispatcher_conv_*.so and no such target in a {NINJA}; build them first, or name another folder")
        )  # fmt: skip
    left_out = f"{refused:,} other benchmarks were left out; the first: {first}" if refused else ""
    return NamedKernels(family, _frame(family, found), source, left_out)


def _kernel_name(text: str) -> str | None:
    """The kernel of a program, a library or a target; None if it is something else."""
    base = text.rpartition("/")[2]
    if base.startswith(f"{PROGRAM}gemm_"):
        return base.removeprefix(PROGRAM).removesuffix(".exe") if "." not in base or base.endswith(".exe") else None
    library = LIBRARY.fullmatch(base)
    if library is None:
        return None
    variant, dimensions, dtype, tile, rest = library.groups()
    return f"grouped_conv_{variant}_{dtype}_{dimensions}d_{tile}_{rest}"


def _targets(file: Path) -> Iterator[str]:
    with file.open("rb") as lines:
        for line in lines:
            found = TARGET.match(line)
            name = _kernel_name(found[1].decode(errors="replace")) if found else None
            if name is not None and re.search(r"_\d+x\d+x\d+", name):  # not a target that stands for all of a kind
                yield name


def _frame(family: Family, kernels: Sequence[Named]) -> pl.DataFrame:
    keys = list(kernels[0].key)
    columns: dict[str, pl.Series] = {
        f"config.{name}": pl.Series([item.config[name] for item in kernels], dtype=column_type(rule))
        for name, rule in family.config.parameters.items()
    }
    columns |= {name: pl.Series([item.key[name] for item in kernels]) for name in keys}
    columns[LABEL] = pl.Series([item.name for item in kernels], dtype=pl.String)
    frame = pl.DataFrame(columns)
    # Two names of mem kernels may be one config: the first counts.
    return frame.unique([name for name in frame.columns if name != LABEL], keep="first", maintain_order=True)


@dataclass(frozen=True)
class Selection:
    """`per_problem` limits the configs of each problem; `portfolio`, `kernels` or `offered` replaces the family's own."""

    per_problem: int | None = None
    portfolio: pl.DataFrame | None = None
    offered: Offered | None = None
    kernels: NamedKernels | None = None

    @property
    def notes(self) -> list[str]:
        """What a list of kernels is of, and what else was there."""
        return [] if self.kernels is None else [text for text in (str(self.kernels), self.kernels.left_out) if text]

    @property
    def given(self) -> pl.DataFrame | None:
        """The list that replaces the family's configs; None: there is none."""
        return self.portfolio if self.kernels is None else self.kernels.rows


def portfolio_file(text: str) -> Path | None:
    """The FILE of `portfolio:FILE`, if that is a table or a dataset."""
    kind, _, rest = text.partition(":")
    return Path(rest) if kind == "portfolio" and (is_table(rest) or (Path(rest) / MANIFEST).is_file()) else None


def parse_selection(family: Family, text: str) -> Selection:
    """`all`, `sample:N`, `portfolio:FILE`, `kernels:FILE`, `build:DIR`, `inductor` or `inductor:exhaustive`."""
    kind, _, rest = str(text).partition(":")
    if text == "all":
        return Selection()
    if kind == "sample" and rest.isdigit() and int(rest) > 0:
        return Selection(per_problem=int(rest))
    if (listed := portfolio_file(text)) is not None:
        return Selection(portfolio=read_portfolio(family, listed))
    if kind == "kernels" and rest:
        return Selection(kernels=read_kernel_list(family, Path(rest), as_named=True))
    if kind == "build" and rest:
        return Selection(kernels=read_build(family, Path(rest), as_named=True))
    if kind == "inductor":
        return Selection(offered=offered(family, rest or "default"))
    raise InvalidValue(
        "configs are all, sample:N (N ≥ 1, per problem), portfolio:FILE (.json, .parquet, .csv, or a dataset), kernels:FILE "
        f"(names of kernels), build:DIR (a build folder of CK Tile), inductor or inductor:exhaustive, got '{text}'"
    )


def read_portfolio(family: Family, path: Path) -> pl.DataFrame:
    """The configs that a file lists or that worked in a dataset; of rules, those that the config alone breaks are checked."""
    if not family.config.parameters:
        raise InvalidValue(f"{family.id} has exactly one config, so a portfolio has nothing to choose: use `configs=all`")
    if (path / MANIFEST).is_file():
        rows = Dataset.open(path).read(family, where=["status = ok"])
        if not rows.height:
            raise InvalidValue(f"no config of {family.id} worked in {path}: name a dataset that has some")
        configs = rows.select(pl.col("^config\\..*$").name.map(lambda name: name.removeprefix("config.")))
        return configs.unique(maintain_order=True)
    points = read_points(path, family.config, "config.")
    try:
        return complete(family.config, points, str(path), strict=True)
    except InvalidValue as error:
        raise BadFile(str(error)) from error
