"""A routine: the steps from measuring to a model in the store, as a TOML file that is checked when it is loaded.

docs/regenerating.md explains every key. Routines that ship are the files in `routines/`.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec

from kerncast.core.io.artefact import kind_of_toml
from kerncast.core.io.foreign import decode_toml, guarded
from kerncast.core.progress import Progress
from kerncast.errors import BadFile, InvalidValue
from kerncast.learning.learners.contract import TARGETS
from kerncast.measuring.backends.command.benchmark import toml_text
from kerncast.models.store.entry import DEFAULT, check_name

SHIPPED = "routines"
# The family that numpy can race against.
RACED = "gemm/cpu"
DOCS = "every key is explained in docs/regenerating.md"
Positive = Annotated[int, msgspec.Meta(ge=1)]
Natural = Annotated[int, msgspec.Meta(ge=0)]
Amount = Annotated[float, msgspec.Meta(gt=0)]
Percent = Annotated[float, msgspec.Meta(ge=0, le=100)]
# Valid for every random number generator, with room for what learners add to it.
Seed = Annotated[int, msgspec.Meta(ge=0, le=2**30)]
Threads = Annotated[int, msgspec.Meta(ge=0, le=1024)]
StepName = Literal["sweep", "collect", "repeat", "race", "train", "export", "report", "compare", "replace"]
# In the order in which they run.
STEPS: tuple[StepName, ...] = get_args(StepName)
USUAL_STEPS: tuple[StepName, ...] = ("sweep", "collect", "train", "compare", "replace")
# A step, and the earlier one whose result it needs.
NEEDS = {
    "repeat": "collect", "race": "collect", "train": "collect", "export": "train", "report": "train", "compare": "train",
    "replace": "compare",
}  # fmt: skip
# The keys that decide the measurements. `train` only decides the model; `steps`, `compare`, `store` and `doc` decide neither.
_MEASURES = ("name", "families", "flat", "sweep", "collect", "import")


Facts = dict[str, Any]
"""What a step found out, as `state.json` keeps it."""
Step = Callable[[], Facts | None]
"""Does its part and returns facts; None: it was stopped, or nothing is left to do."""


class SweepSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to measure, in the words of `kerncast sweep`."""

    problems: Annotated[list[str], msgspec.Meta(min_length=1)]
    vary: list[str] = []
    configs: str = "all"
    """Besides what `kerncast sweep` knows: `promising:N`, the first N of each layout in the set `quick` of gemm/cpu."""
    max_flops: Amount | None = None
    max_bytes: Amount | None = None
    max_problems: Positive | None = None
    """Keep at most this many."""
    draw: Literal["random", "even"] = "random"
    """Which ones: drawn by the seed, or evenly over the arithmetic that they need, of each kind in `vary` as many."""
    max_vectors: Positive | None = None
    seed: Natural = 0


class CollectSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to measure it, in the words of `kerncast collect`."""

    backend: str | None = None
    benchmark: str | None = None
    """An external benchmark, by name or TOML file."""
    settings: dict[str, str] = {}
    devices: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)] = ("0",)
    samples: Positive | None = None
    cache: Literal["warm", "cold"] | None = None
    build_jobs: Positive = 2
    repeat: Positive = 8
    """The number of problems that the step `repeat` measures a second time."""
    second_visit_seconds: Amount | None = None
    """The longest time for vectors that had too few quiet samples; as long as it takes, if it is left out."""


class ImportSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Measurements that others made, in the words of `kerncast import`: read instead of swept and collected."""

    format: str
    files: list[str] | str = []
    settings: dict[str, str] = {}
    """What the format asks for besides, as `kerncast import --set` has it."""
    device: str | None = None
    software: dict[str, str] = {}
    source: str = ""
    """Where the files can be had, for a user who has not named any."""

    @property
    def paths(self) -> list[Path]:
        return [Path(name) for name in ([self.files] if isinstance(self.files, str) else self.files)]


class TrainSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to learn from it, in the words of `kerncast train`."""

    model: str = "gbdt"
    knobs: dict[str, Any] = {}
    target: str | None = None
    folds: Annotated[int, msgspec.Meta(ge=2)] = 5
    seed: Seed = 0
    threads: Threads = 0
    hard_mining: Natural = 0
    tune: Natural = 0
    where: list[str] = []
    """The rows to learn from; `suspect=false` leaves out those whose labels belong to other rows."""


class CompareSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far the new model may fall behind the old one, in per cent, in the words of `kerncast compare`."""

    max_mean: Percent = 0.5
    max_median: Percent = 0.5
    max_p10: Percent = 2.0
    max_problem: Percent = 10.0
    strict: bool = False
    """Do not replace the model on AMBIGUOUS."""


class StoreSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where it goes in the store."""

    name: str = DEFAULT
    """`default`: what the store calls it, by the part of the op that it covers."""

    @property
    def given_name(self) -> str | None:
        """The name, if it is not left to the store."""
        return None if self.name == DEFAULT else self.name


class Routine(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"imported": "import"}):
    """Everything about one regeneration; each family gets its own vectors, dataset and model."""

    name: str
    families: Annotated[list[str], msgspec.Meta(min_length=1)]
    steps: tuple[StepName, ...] = USUAL_STEPS
    """What is done, in this order. Without `compare` and `replace` the store is left alone."""
    flat: bool = False
    """Put the files of the only family into the work directory itself, and name the dataset after the family."""
    sweep: SweepSection | None = None
    imported: ImportSection | None = None
    """Instead of `sweep` and `collect`."""
    doc: str = ""
    collect: CollectSection = CollectSection()
    train: TrainSection = TrainSection()
    compare: CompareSection = CompareSection()
    store: StoreSection = StoreSection()

    @property
    def measures(self) -> str:
        """A hash of what decides the measurements."""
        body = msgspec.to_builtins(self)
        return _hash({name: body[name] for name in _MEASURES})

    @property
    def learns(self) -> str:
        """A hash of what else decides the model; threads are left out, because they only change the time it takes."""
        return _hash((msgspec.to_builtins(msgspec.structs.replace(self.train, threads=0)), "repeat" in self.steps))

    @property
    def digest(self) -> str:
        """A hash of both."""
        return _hash((self.measures, self.learns))


def _hash(value: object) -> str:
    return hashlib.blake2b(msgspec.json.encode(value, order="sorted"), digest_size=8).hexdigest()


def shipped() -> dict[str, str]:
    """The routines that come with kerncast, name → text."""
    folder = resources.files(__package__) / SHIPPED
    files = sorted((item for item in folder.iterdir() if item.name.endswith(".toml")), key=lambda item: item.name)
    return {item.name.removesuffix(".toml"): item.read_text(encoding="utf-8") for item in files}


def load(name: str, changes: Sequence[str] = ()) -> Routine:
    """A routine by name or by the path of its file, checked; `changes` are KEY=VALUE such as `sweep.max_problems=20`."""
    text = toml_text("routine", name, shipped())
    with guarded(name, DOCS, "is not a routine for regenerating"):
        data = decode_toml(text)
        for change in changes:
            _change(data, change)
        routine = msgspec.convert(data, Routine)
    _check(routine, name)
    return routine


def _change(data: dict[str, Any], change: str) -> None:
    """One `--set`: a dotted key, and a TOML value (a bare word is text)."""
    key, equals, text = change.partition("=")
    if not (equals and key):
        raise InvalidValue(f"`changes` takes KEY=VALUE such as sweep.max_problems=20, got '{change}'")
    try:
        value = decode_toml(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    *folders, last = key.split(".")
    for folder in folders:
        data = data.setdefault(folder, {})
        if not isinstance(data, dict):
            raise InvalidValue(f"`changes` {key}: {folder} is a value, not a section ({DOCS})")
    data[last] = value


def _check(routine: Routine, where: str) -> None:
    """Check what the types cannot express."""
    if not routine.name.replace("-", "").replace("_", "").replace(".", "").isalnum() or routine.name.startswith("."):
        raise BadFile(f"routine {where}: name is letters, digits, '-', '_' and '.', got '{routine.name}'")
    if (routine.sweep is None) == (routine.imported is None):
        raise BadFile(f"routine {where}: it has either a [sweep] to measure or an [import] of what others measured ({DOCS})")
    if len(set(routine.families)) < len(routine.families):
        raise BadFile(f"routine {where}: families names one twice: keep one")
    _check_steps(routine, where)
    if routine.collect.benchmark and routine.collect.backend not in (None, "command"):
        raise BadFile(f"routine {where}: collect.benchmark is for the backend command, not {routine.collect.backend}: drop one")
    if routine.train.target not in (None, *TARGETS):
        raise BadFile(f"routine {where}: train.target is one of {', '.join(TARGETS)}, got '{routine.train.target}'")
    try:
        check_name(routine.store.name)
    except InvalidValue as error:
        raise BadFile(f"routine {where}: store.name: {error}") from error
    if routine.collect.settings and not routine.collect.benchmark:
        raise BadFile(f"routine {where}: collect.settings belong to an external benchmark: name it in collect.benchmark")


def _check_steps(routine: Routine, where: str) -> None:
    """Check that every step comes once, in order, and after the one that it needs."""
    steps = routine.steps
    if list(steps) != [name for name in STEPS if name in steps] or "collect" not in steps:
        raise BadFile(
            f"routine {where}: steps are some of {', '.join(STEPS)}, in this order, with collect: got {', '.join(steps)}"
        )
    for name in steps:
        if NEEDS.get(name, name) not in steps:
            raise BadFile(f"routine {where}: the step {name} needs the step {NEEDS[name]}: add it, or leave {name} out")
    if routine.flat and len(routine.families) > 1:
        raise BadFile(f"routine {where}: flat is for one family, and families names {len(routine.families)}: leave it out")
    if routine.imported is not None and "repeat" in steps:
        raise BadFile(f"routine {where}: the step repeat measures, and an [import] does not: leave it out")
    if "race" in steps and routine.families != [RACED]:
        raise BadFile(f"routine {where}: the step race is for {RACED} alone: leave it out")


def walk(
    steps: Mapping[str, Step],
    title: str,
    progress: Progress,
    keep: Callable[[str, Facts], None] = lambda step, facts: None,
    done: Collection[str] = (),
) -> str | None:
    """Run the steps that are not done, in order, and `keep` their facts. Returns the step that ended it early, if one did."""
    for number, (name, step) in enumerate(steps.items(), 1):
        progress.stage(f"{title}: {name}{' (done before)' if name in done else ''}", number, len(steps))
        if name in done:
            continue
        facts = step()
        if facts is None:
            return name
        keep(name, facts)
    return None


ROUTINE = kind_of_toml("routine", frozenset({"name", "families"}), lambda path: load(str(path.absolute())))
