"""What several public functions take: models, places, conditions on rows, problems, and a cluster to work on."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import kerncast.answering  # noqa: F401 (Model.predict is compiled by it)
from kerncast.core.io.arguments import Help, comma_list, listed, texts
from kerncast.core.op import Family
from kerncast.data.dataset import Dataset
from kerncast.data.tables import Frame
from kerncast.errors import InvalidValue, KerncastError, NotFound
from kerncast.models.model import Model, is_model
from kerncast.models.store.store import Store

if TYPE_CHECKING:
    from kerncast.training.procedure import Spread


PROBLEMS = "`problems`: a text (llm, grid:M=1,2;N=8;K=8, or the path of a table), a mapping of parameters, or a list of these"
Problems = str | Mapping[str, Any] | Iterable[str | Mapping[str, Any]]
"""What `problems` takes: specifications and single problems."""
Data = Dataset | str | Path | Frame | Sequence[Dataset | str | Path | Frame]
"""A dataset, its path, a frame of measurements, or several of these."""

# Removed when the process ends: `.save(path)` keeps a result.
_temporary: list[tempfile.TemporaryDirectory[str]] = []


def place_of(out: str | Path | None, name: str) -> Path:
    """Where a result goes: where the caller says, else a temporary folder that lasts as long as the process."""
    if out is not None:
        return Path(out)
    _temporary.append(tempfile.TemporaryDirectory(prefix="kerncast-"))
    return Path(_temporary[-1].name) / name


def model_of(model: Model | str | Path, store: Store | str | Path | None = None) -> Model:
    """A model, loaded if it is a path, or the id of a model in the store (your own, unless another is given)."""
    if isinstance(model, Model):
        return model
    entry = None
    if isinstance(model, str) and not is_model(Path(model)):
        with contextlib.suppress(NotFound):  # it is refused as a path
            entry = store_of(store).meant(model)
    return Model.load(model) if entry is None else entry.load()


def store_of(store: Store | str | Path | None) -> Store:
    """A store, opened if it is a path; your own, unless one is named."""
    return store if isinstance(store, Store) else Store.open(store)


def row_conditions(where: str | Sequence[str] | None, software: str | None) -> tuple[str, ...]:
    """The conditions on rows: those that are given, and that of the software."""
    if software is None:
        return texts(where)
    if not isinstance(software, str) or not software.strip():
        raise InvalidValue(f"`software` takes one name, such as vllm or vllm==0.24.0, got {software!r}")
    return (*texts(where), f"software={software.strip()}")


def problem_texts(given: Problems | None) -> tuple[str, ...]:
    """Specifications of problems as texts; problems that are given by their parameters become a table of their own."""
    items = [] if given is None else listed(given)
    single = [dict(item) for item in items if isinstance(item, Mapping)]
    said = texts([item for item in items if not isinstance(item, Mapping)], PROBLEMS)
    if not single:
        return said
    table = place_of(None, "problems.json")
    try:
        table.write_text(json.dumps(single))
    except TypeError as error:
        raise InvalidValue(f"the values of a problem are whole numbers, texts and booleans: {error}") from error
    return (*said, str(table))


def problems_described(given: Problems) -> str:
    """What was asked for, in a line that says the same in every run."""
    items = listed(given)
    single = sum(isinstance(item, Mapping) for item in items)
    said = texts([item for item in items if not isinstance(item, Mapping)], PROBLEMS)
    return " ".join([*said, f"{single} given by their parameters"] if single else said)


def with_preset(preset: Mapping[str, Any], given: tuple[str, ...]) -> tuple[str, ...]:
    """The assignments, and those that an alias of the op makes; one that contradicts the alias is refused."""
    own = {name: f"{name}={comma_list(value)}" for name, value in preset.items()}
    for text in given:
        name = text.partition("=")[0].strip()
        if name in own and text.replace(" ", "") != own[name]:
            raise InvalidValue(f"the op's name means {own[name]}, which contradicts {text}: leave one of them out")
        own.pop(name, None)
    return (*given, *own.values())


ModelOf: TypeAlias = Annotated[Model | str | Path, Help(metavar="MODEL", names="models")]
Datasets: TypeAlias = Annotated[Data, Help(metavar="DATASET...", names="dataset_folders")]
Where: TypeAlias = Annotated[
    str | Sequence[str],
    "Keep only some rows: dtype=fp8 (or problem.dtype=fp8), config.kind=triton, time_ns<1e6 (rows "
    "that failed have no time, and stay), M=1,2,4. May be repeated.",
    Help(metavar="CONDITION", names="conditions"),
]
RowsOf: TypeAlias = Annotated[
    str | None,
    "Keep only rows of this software: vllm (the newest version of each device), vllm==0.24.0, commit=3f2a91c.",
    Help(metavar="NAME"),
]
Seed: TypeAlias = Annotated[int, Help("The same data and seed give the same bytes.", least=0)]
MaxFlops: TypeAlias = Annotated[
    float | None, Help("Leave out problems with more arithmetic than this.", metavar="FLOP", above=0)
]
FamilyOf: TypeAlias = Annotated[Family | str, Help(metavar="FAMILY", names="families")]
StoreOf: TypeAlias = Annotated[Store | str | Path | None, Help("The store of models. [default: your own]", metavar="DIR")]


LOCAL, RAY = "local", "ray"
PLACES = (LOCAL, RAY)
# Longer than a busy machine takes to accept a connection.
CONNECT_SECONDS = 10.0
HIGHEST_PORT = 65535


@dataclass(frozen=True)
class Cluster:
    """Where to work: in this process (`local`), or on the Ray cluster at an address (`ray`)."""

    on: Annotated[str, Help("Where to work. ray: on a cluster (docs/fleet.md).", choices=PLACES)] = LOCAL
    address: Annotated[
        str | None,
        "With `on=ray`: the head of the cluster. [default: RAY_ADDRESS, or the cluster that runs on this machine, or a new "
        "one of this machine alone]",
        Help(metavar="HOST:PORT"),
    ] = None

    def __post_init__(self) -> None:
        if self.on not in PLACES:
            raise NotFound.named("place to work", self.on, PLACES)
        if self.address is not None:
            self.refuse_if_local("address")

    @property
    def is_ray(self) -> bool:
        return self.on == RAY

    def refuse_if_local(self, name: str) -> None:
        """Refuse an argument that means something only on a cluster."""
        if not self.is_ray:
            raise InvalidValue(f"`{name}` is for a cluster: add `on=ray`, or leave it out")


HERE = Cluster()


@contextmanager
def spread_over(cluster: Cluster) -> Iterator[Spread | None]:
    """What runs the fits of a training: this process (None), or a cluster, connected for as long as that takes."""
    if not cluster.is_ray:
        yield None
        return
    with connected(cluster.address):
        from kerncast.training.fits import over_cluster

        yield over_cluster


@contextmanager
def connected(address: str | None = None) -> Iterator[Any]:
    """Connect to a cluster for as long as the work inside takes, and yield the module `ray`.

    `address` is HOST:PORT, `auto`, or None: the cluster that RAY_ADDRESS names or that runs on this machine, else a new one of
    this machine alone, which ends with the work. A connection that this process has already is used, and left open.
    """
    try:
        import ray
        from ray.job_config import JobConfig
    except ImportError as error:
        raise NotFound.package("`on=ray`", "ray", "ray") from error
    if ray.is_initialized():
        yield ray
        return
    _check_reachable("`address`", address)
    if address is None:
        _check_reachable("RAY_ADDRESS", os.environ.get("RAY_ADDRESS"))
    with _own_signals():
        try:
            job: Any = JobConfig()
            # Else Ray puts the driver's current folder first on the path of its workers.
            job._runtime_env_has_working_dir = lambda: True
            ray.init(
                address=address, job_config=job, include_dashboard=False, log_to_driver=False, configure_logging=False,
                logging_level=logging.ERROR,
            )  # fmt: skip
        except Exception as error:  # Ray has no common class for what may go wrong here
            where = f"`address` {address!r}" if address else "the cluster"
            why = " ".join(str(error).split())[:300]
            raise KerncastError(
                f"no connection to {where} ({why}): see `ray status`, or start one with `ray start --head`"
            ) from error
    with _standard_output_kept(ray):
        try:
            yield ray
        finally:
            with _own_signals():
                ray.shutdown()


def _check_reachable(name: str, address: str | None) -> None:
    """Refuse HOST:PORT at which nothing listens: Ray itself would try again for minutes. `name` says where it was given."""
    host, colon, port = (address or "").rpartition(":")
    if not colon or not port.isdecimal() or "/" in host or int(port) > HIGHEST_PORT:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        raise KerncastError(
            f"nothing answers at {name} {address!r} ({error.strerror or error}): start the head there with "
            f"`ray start --head --port {port}`, or give the address that it printed"
        ) from error


@contextmanager
def _standard_output_kept(ray: Any) -> Iterator[None]:
    """Standard output is for results: Ray would print there what it knows of nodes that end, which is said elsewhere."""
    worker = ray._private.worker
    before, worker._worker_logs_enabled = getattr(worker, "_worker_logs_enabled", True), False
    try:
        yield
    finally:
        worker._worker_logs_enabled = before


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep the handler of SIGTERM, which Ray replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
