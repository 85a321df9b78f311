"""A Ray cluster of several nodes on this machine, whose nodes can be added and killed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

OBJECT_STORE_BYTES = 100 * 2**20
CARD = "card"
GONE_SECONDS = 30.0
ATTEMPTS = 4
# Ray gives its processes niceness 15: beside other tests, a fit would wait for minutes.
NICENESS = ("RAY_worker_niceness", "0")


class DidNotStart(Exception):
    """The machine is so busy that Ray gave up several times. That says nothing about kerncast."""


class SmallCluster:
    """A head without devices, and nodes with some cards each. Nodes get the environment of the moment in which they start."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        kept: dict[str, Any] = {"num_cpus": 0, "object_store_memory": OBJECT_STORE_BYTES, "include_dashboard": False}
        self._cluster: Any = _patiently(lambda: Cluster(initialize_head=True, head_node_args=kept))
        self.nodes: list[Any] = []

    @property
    def address(self) -> str:
        """Where to connect to."""
        return str(self._cluster.address)

    def add(self, cards: int = 1, resource: str = CARD, cpus: int = 0) -> Any:
        """A node with so many cards, which may have another name."""
        resources = {resource: cards} if cards else {}
        node = _patiently(
            lambda: self._cluster.add_node(num_cpus=cpus, resources=resources, object_store_memory=OBJECT_STORE_BYTES)
        )
        self.nodes.append(node)
        return node

    def kill(self, node: Any) -> None:
        """End all processes of a node at once, as a power cut does."""
        self.nodes.remove(node)
        self._cluster.remove_node(node, allow_graceful=False)

    def close(self) -> None:
        """End everything."""
        self._cluster.shutdown()


def _patiently(start: Callable[[], Any]) -> Any:
    """Start something again if the machine is so busy that Ray gives up: it waits for 30 s, and cannot be told otherwise."""
    os.environ.setdefault(*NICENESS)
    for _ in range(ATTEMPTS):
        try:
            return start()
        except Exception as error:  # it raises no class of its own
            if "timed out" not in str(error):
                raise
            last = error
    raise DidNotStart(f"Ray did not start within its 30 s, {ATTEMPTS} times in a row") from last


@contextmanager
def small_cluster(*cards: int) -> Iterator[SmallCluster]:
    """A cluster with a node for each number of cards. Ray's own handler of SIGTERM does not outlive it."""
    before = signal.getsignal(signal.SIGTERM)
    found = SmallCluster()
    try:
        for count in cards:
            found.add(count)
        yield found
    finally:
        found.close()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def wait_until(holds: Any, seconds: float = GONE_SECONDS) -> bool:
    """Whether something becomes true in time."""
    until = time.monotonic() + seconds
    while not (found := holds()) and time.monotonic() < until:
        time.sleep(0.05)
    return bool(found)
