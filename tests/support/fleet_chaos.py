"""The battery of `chaos` on a Ray cluster: nodes and keepers are killed, too, while the command and the workers are."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support import chaos
from tests.support.chaos import Battery, Episode, Report
from tests.support.clusters import CARD, SmallCluster

ACTOR = b"ray::DeviceActor"
NODES = 2


def schedule(vectors: int, kills: int, others: int, seed: int) -> list[Episode]:
    """When everything happens. The clock of a cluster is not ours to turn; a node ends in the middle, and another comes."""
    kept = [episode for episode in chaos.schedule(vectors, kills, others, seed) if episode.kind != "clock"]
    rng = random.Random(seed)
    keepers = [Episode("kill_keeper", rng.randrange(int(chaos.LAST * vectors))) for _ in range(others)]
    node = Episode("kill_node", int(chaos.LAST * vectors / 2))
    return sorted([*kept, *keepers, node], key=lambda episode: episode.rows)


def run(folder: Path, *, vectors: int = 1000, kills: int = 5, others: int = 3, seed: int = 0) -> Report:
    """Make so many vectors, measure them on two nodes in spite of everything, and look at what became of them."""
    return FleetBattery(folder, vectors, seed).run(schedule(vectors, kills, others, seed))


class FleetBattery(Battery):
    """A collection on a cluster."""

    stalled_seconds = 900.0
    """On a busy machine, Ray itself takes minutes to start a process."""

    def __init__(self, folder: Path, vectors: int, seed: int) -> None:
        super().__init__(folder, vectors, seed)
        with self._environment():
            self.cluster = SmallCluster()
            for _ in range(NODES):
                self.cluster.add(1)

    @contextmanager
    def _environment(self) -> Iterator[None]:
        """Nodes that start inside know the faults, and their processes are found by the name of the machine."""
        before = dict(os.environ)
        name, _, value = self.machine.name.partition("=")
        os.environ.update({**self.plan, name: value})
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)

    def where(self) -> list[str]:
        return ["--on", "ray", "--address", self.cluster.address, "--resource", CARD]

    def happens(self, episode: Episode) -> bool:
        if episode.kind not in ("kill_node", "kill_keeper"):
            return super().happens(episode)
        self.report.episodes[episode.kind] += 1
        if episode.kind == "kill_node":
            self.cluster.kill(self.cluster.nodes[0])
            with self._environment():
                self.cluster.add(1)
        else:
            keepers = self.machine.processes(ACTOR)
            self.signal(self.rng.choice(keepers) if keepers else None, signal.SIGKILL)
        return False

    def close(self) -> None:
        self.cluster.close()
