"""Backends whose devices differ, change or vanish; what they do is told by files in the folder `ODD`."""

import os
import time
from pathlib import Path

from kerncast.library import devices
from kerncast.measuring.backends.contract import Backend, Prepared


def folder():
    return Path(os.environ["ODD"])


class Plain(Prepared):
    def run(self, launches):
        return 30_000 * launches

    def check(self):
        return 0.0


class Mixed(Backend):
    """The devices 0 and 1 are not the same."""

    name = "mixed"
    families = ("*",)

    def device(self):
        return devices.get("a100" if self.index == "0" else "h100")

    def software(self, family):
        return {"driver": f"1.{self.index}"}

    def prepare(self, problem, config):
        return Plain()


class Vanishing(Mixed):
    """The device with a file `falls0` ends its worker after M=64; the file becomes another: `gone0` keeps it away.

    With a file `waits`, device 0 goes on after M=64 only when there is a file `lost`.
    """

    def __init__(self, index="0"):
        super().__init__(index)
        if (folder() / f"gone{index}").exists():
            raise RuntimeError("no such device")

    def device(self):
        return devices.get("a100")

    def software(self, family):
        return {"driver": "2" if (folder() / "updated").exists() else "1"}

    def prepare(self, problem, config):
        if self.index == "0" and problem.M >= 65 and (folder() / "waits").exists():
            while not (folder() / "lost").exists():
                time.sleep(0.02)
        falls = folder() / f"falls{self.index}"
        if falls.exists() and problem.M >= 65:
            falls.rename(folder() / falls.read_text())
            os._exit(5)
        return Plain()


class Meeting(Vanishing):
    """The devices 0 and 1, each of which begins when the other has something to do, too."""

    def prepare(self, problem, config):
        (folder() / f"at_work{self.index}").touch()
        while not all((folder() / f"at_work{index}").exists() for index in "01"):
            time.sleep(0.01)
        return Plain()


class Wrong(Mixed):
    """By M: a close that fails, a clock that runs backwards, one that stands, a kernel that cannot be prepared."""

    def prepare(self, problem, config):
        if problem.M == 67:
            raise KeyError("x")
        return WrongKernel(problem.M)


class WrongKernel(Plain):
    def __init__(self, case):
        self.case = case

    def run(self, launches):
        return {65: -5, 66: 0}.get(self.case, 30_000 * launches)

    def close(self):
        if self.case == 64:
            raise RuntimeError("cannot be closed")
