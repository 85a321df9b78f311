"""Backends on which something other than the kernels fails; the folder `BLAMED` tells what, and how often it did."""

import errno
import os
import signal
from pathlib import Path

from kerncast.errors import CannotWrite
from kerncast.library import devices
from kerncast.measuring.backends.contract import Backend, Failed, Prepared
from kerncast.measuring.backends.inductor import InductorBackend


def folder():
    return Path(os.environ["BLAMED"])


def first_time(name):
    """Whether this is the first call with this name, in any process."""
    try:
        (folder() / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


class Plain(Prepared):
    def run(self, launches):
        return 30_000 * launches

    def check(self):
        return 0.0


class Blamed(Backend):
    """What fails is the name of a file in the folder; it works again when the file is removed."""

    name = "blamed"
    families = ("*",)

    def __init__(self, index="0"):
        super().__init__(index)
        if (folder() / "cache_open").exists():
            raise CannotWrite("the cache is not used, because others may write to it: set KERNCAST_CACHE")

    def device(self):
        return devices.get("a100")

    def software(self, family):
        return {"driver": "1"}

    def compile(self, vectors, jobs=1):
        if (folder() / "cache_full").exists():
            raise CannotWrite("compiled kernels cannot be kept in the cache (No space left on device): free space")

    def prepare(self, problem, config):
        if (folder() / "no_descriptors").exists() and problem.M == 65:
            raise OSError(errno.EMFILE, "Too many open files")
        if (folder() / "driver_broken").exists():
            raise Failed(f"the driver says 0x{problem.M:x}")
        if (folder() / "killer").exists() and problem.M == 65 and first_time("killed"):
            os.kill(os.getpid(), signal.SIGKILL)
        if (folder() / "ends").exists() and problem.M == 65:
            if not first_time("first") and first_time("second"):
                os.kill(os.getpid(), signal.SIGKILL)
            os._exit(5)
        if (folder() / "illegal").exists() and problem.M == 65:
            os.kill(os.getpid(), signal.SIGILL)
        if (folder() / "journal_gone").exists() and problem.M == 65:
            for file in Path((folder() / "journal_gone").read_text()).iterdir():
                file.unlink() if file.is_file() else None
        return Plain()


class Illegal(Blamed):
    """It knows what helps against SIGILL, as the backend inductor does."""

    name = "illegal"

    @classmethod
    def advice(cls, how):
        return InductorBackend.advice(how)
