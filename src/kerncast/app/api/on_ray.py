"""Work on a Ray cluster: connecting to it, and what `on` and `address` may be."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from kerncast.core.io.arguments import Help
from kerncast.errors import InvalidValue, KerncastError, NotFound

if TYPE_CHECKING:
    from kerncast.training.procedure import Spread

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
        Help(
            "With `on=ray`: the head of the cluster. [default: RAY_ADDRESS, or the cluster that runs on this machine, or a new "
            "one of this machine alone]",
            metavar="HOST:PORT",
        ),
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
        from kerncast.training.spreading import over_cluster

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
