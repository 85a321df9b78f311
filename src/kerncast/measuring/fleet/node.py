"""One device of a cluster, on its machine: the same supervisor and worker as in a local collection, behind a queue.

It knows nothing of a cluster: its methods are called from several threads. The supervisor judges here what a vector did to its
worker process. Nothing is written here: the driver fetches what is final. What the two sides write to each other is msgpack, so
both see plain data only.
"""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from functools import cache
from pathlib import Path

import msgspec

from kerncast.core.progress import Progress
from kerncast.data.journal import software_text
from kerncast.errors import InvalidValue
from kerncast.measuring.backends.environment import worker_share
from kerncast.measuring.hardware import capture
from kerncast.measuring.messages import Chunk, Item, Ready, Result, Start
from kerncast.measuring.supervisor import Supervisor
from kerncast.measuring.timing import words_of
from kerncast.version import __version__

# News that are fetched at once, even if more would come soon.
MANY = 256


class Assignment(msgspec.Struct, frozen=True):
    """A device to open, how its vectors are measured, and what brings it back."""

    start: Start
    reset: tuple[str, ...] = ()
    memory_bytes: int | None = None
    """As for a collection: None is the device's share of its machine's free memory."""
    devices: int = 1
    """Devices of the same machine that are measured at the same time."""


class FinalStatus(msgspec.Struct, frozen=True, tag="measured"):
    """A vector has its final status."""

    result: Result
    chunk: int
    overruled: Item | None = None
    """The vector, if this replaces a status that it has already."""


class Idle(msgspec.Struct, frozen=True, tag="idle"):
    """Nothing is left of so many chunks that were handed over."""

    given: int


class Lost(msgspec.Struct, frozen=True, tag="lost"):
    """The device does not come up, or is given up."""

    why: str


class Said(msgspec.Struct, frozen=True, tag="said"):
    """A sentence to show."""

    text: str


News = FinalStatus | Idle | Lost | Said

packed = msgspec.msgpack.encode
unpacked = msgspec.msgpack.decode
# The driver reads thousands of these in a second.
news_of = msgspec.msgpack.Decoder(list[News]).decode


@cache
def release() -> str:
    """Which kerncast this is: its version and a digest of its modules, for two checkouts may have the same version."""
    home, hasher = Path(__file__).parents[2], hashlib.blake2b(digest_size=6)
    for path in sorted(home.rglob("*.py")):
        hasher.update(path.relative_to(home).as_posix().encode())
        hasher.update(path.read_bytes())
    return f"{__version__} ({hasher.hexdigest()})"


class DeviceActor(Progress):
    """Keeps one device busy with the chunks that it is given; the supervisor reports its progress to it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._chunks: deque[Chunk] = deque()
        """Chunks that are not begun, so another device may still have them."""
        self._given = 0
        self._news: list[News] = []
        self._urgent = False
        """Whether the driver should hear the news now: the device waits for it."""
        self._up: Ready | Lost | None = None
        """How the device came up."""

    def release(self) -> str:
        """Which kerncast this machine has."""
        return release()

    def begin(self, assignment: bytes) -> bytes:
        """Open the device, and say what it is or why it does not come up."""
        wanted = unpacked(assignment, type=Assignment)
        supervisor = Supervisor(
            wanted.start,
            [wanted.start.index],
            record=self._record,
            flush=lambda: None,
            admit=self._admit,
            reset=wanted.reset,
            memory_bytes=worker_share(wanted.devices) if wanted.memory_bytes is None else wanted.memory_bytes,
            progress=self,
        )
        # Workers end with the thread that started them, so it lives as long as this process.
        threading.Thread(target=self._work, args=(supervisor,), daemon=True).start()
        with self._changed:
            self._changed.wait_for(lambda: self._up is not None)
            return packed(self._up)

    def give(self, chunk: bytes) -> None:
        """Take a chunk into the queue."""
        items = unpacked(chunk, type=Chunk)
        with self._changed:
            self._given += 1
            self._chunks.append(items)
            self._changed.notify_all()

    def give_back(self, most: int) -> list[int]:
        """The numbers of at most so many chunks that were not begun, the last first; they are not measured here any more."""
        with self._changed:
            numbers = [self._chunks.pop().number for _ in range(min(most, len(self._chunks)))]
            self._given -= len(numbers)
            return numbers

    def fetch(self, seconds: float, linger: float) -> bytes:
        """What happened since the last call. It waits `seconds` for something, then `linger` for more."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._news), seconds)
            if self._news and linger:
                self._changed.wait_for(lambda: self._urgent or len(self._news) >= MANY, linger)
            news, self._news, self._urgent = self._news, [], False
            return packed(news)

    def hardware(self, device: str) -> bytes:
        """What the tools of this machine say about it."""
        return packed(capture(device))

    def say(self, text: str) -> None:
        """A sentence for the driver to show."""
        with self._changed:
            self._tell(Said(text))

    # -- in the thread of the supervisor -----------------------------------------------------------------

    def _work(self, supervisor: Supervisor) -> None:
        try:
            ready = supervisor.connect()
            with self._changed:
                self._up = ready
                self._changed.notify_all()
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: bool(self._chunks))
                supervisor.run(iter(self._next_chunk, None), lambda: False)
                with self._changed:
                    if not self._chunks:
                        self._tell(Idle(self._given), urgent=True)
        except Exception as error:  # whatever it is, this device measures no more, and the driver must know
            with self._changed:
                over = Lost(words_of(error))
                self._up = self._up or over
                self._tell(over, urgent=True)
        finally:
            supervisor.close()

    def _next_chunk(self) -> Chunk | None:
        """The next chunk of the queue; from now on it is measured here."""
        with self._changed:
            if self._chunks:
                return self._chunks.popleft()
            self._urgent = bool(self._news)
            self._changed.notify_all()
            return None

    def _admit(self, index: str, ready: Ready) -> None:
        """A device that comes back must be what it was: the rows of one dataset are of one device and software."""
        was = self._up
        if isinstance(was, Ready) and (was.device["name"], was.software) != (ready.device["name"], ready.software):
            raise InvalidValue(
                f"device {index} was {was.device['name']} with {software_text(was.software)} and came back as "
                f"{ready.device['name']} with {software_text(ready.software)}"
            )

    def _record(self, item: Item, result: Result, block: int, device_index: str, overrules: bool = False) -> None:
        with self._changed:
            self._tell(FinalStatus(result, block, item if overrules else None))

    def _tell(self, news: News, *, urgent: bool = False) -> None:
        self._news.append(news)
        self._urgent = self._urgent or urgent
        self._changed.notify_all()
