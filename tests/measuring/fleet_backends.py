"""Devices of a small cluster: what they do is told by the environment in which their node was started."""

import os
import time
from pathlib import Path

from kerncast.testing.faults import Faulty

GATE = "FLEET_GATE"
# From this problem on, a device behind the gate waits.
WAITS_FROM = 66


class Gated(Faulty):
    """Waits until the file that its environment names is there."""

    def prepare(self, problem, config):
        gate = os.environ.get(GATE)
        while gate and problem.M >= WAITS_FROM and not Path(gate).exists():
            time.sleep(0.01)
        return super().prepare(problem, config)
