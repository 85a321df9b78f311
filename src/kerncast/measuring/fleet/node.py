"""What the driver and the keepers of devices write to each other: msgpack, so both sides see plain data only."""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import msgspec

from kerncast.core.progress import Progress
from kerncast.data.hardware import Hardware
from kerncast.data.journal import software_text
from kerncast.errors import InvalidValue
from kerncast.measuring.backends.memory import worker_share
from kerncast.measuring.hardware import capture
from kerncast.measuring.messages import Chunk, Item, Ready, Result, Start
from kerncast.measuring.supervisor import Supervisor, reset_by
from kerncast.measuring.timing import words_of
from kerncast.version import __version__


class Post(msgspec.Struct, frozen=True):
    """What a keeper is asked to keep: a device, how its vectors are measured, and what brings it back."""

    start: Start
    reset: tuple[str, ...] = ()
    memory_bytes: int | None = None
    """As for a collection: None is the device's share of its machine's free memory."""
    devices: int = 1
    """Devices of the same machine that are measured at the same time."""


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The device does not come up."""

    why: str


class Measured(msgspec.Struct, frozen=True, tag="measured"):
    """A vector has its final status."""

    result: Result
    chunk: int
    overruled: Item | None = None
    """The vector, if this replaces a status that it has already."""


class Idle(msgspec.Struct, frozen=True, tag="idle"):
    """Nothing is left of so many chunks that were handed over."""

    given: int


class Lost(msgspec.Struct, frozen=True, tag="lost"):
    """The device is given up."""

    why: str


class Said(msgspec.Struct, frozen=True, tag="said"):
    """A sentence to show."""

    text: str


News = Measured | Idle | Lost | Said

_encoder = msgspec.msgpack.Encoder()
_news = msgspec.msgpack.Decoder(list[News])
_chunk = msgspec.msgpack.Decoder(Chunk)
_post = msgspec.msgpack.Decoder(Post)
_answer: msgspec.msgpack.Decoder[Ready | Refused] = msgspec.msgpack.Decoder(Ready | Refused)
_hardware = msgspec.msgpack.Decoder(Hardware)


def packed(value: Post | Chunk | Ready | Refused | Hardware | Iterable[News]) -> bytes:
    """A letter as bytes."""
    return _encoder.encode(value)


def news_of(data: bytes) -> list[News]:
    """What happened at a keeper."""
    return _news.decode(data)


def chunk_of(data: bytes) -> Chunk:
    """Vectors to measure."""
    return _chunk.decode(data)


def post_of(data: bytes) -> Post:
    """What to keep."""
    return _post.decode(data)


def answer_of(data: bytes) -> Ready | Refused:
    """How a device came up."""
    return _answer.decode(data)


def hardware_of(data: bytes) -> Hardware:
    """What the tools of a machine said."""
    return _hardware.decode(data)


@cache
def release() -> str:
    """Which kerncast this is: its version and a digest of its modules, for two checkouts may have the same version."""
    home, hasher = Path(__file__).parents[2], hashlib.blake2b(digest_size=6)
    for path in sorted(home.rglob("*.py")):
        hasher.update(path.relative_to(home).as_posix().encode())
        hasher.update(path.read_bytes())
    return f"{__version__} ({hasher.hexdigest()})"


# News that are fetched at once, even if more would come soon.
MANY = 256


class Keeper:
    """Keeps one device busy with the chunks that it is given."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._chunks: deque[Chunk] = deque()
        """Chunks that are not begun, so another device may still have them."""
        self._given = 0
        self._news: list[News] = []
        self._urgent = False
        """Whether the driver should hear the news now: the device waits for it."""
        self._ready: Ready | None = None
        self._over: str | None = None
        """Why the device is given up."""

    def release(self) -> str:
        """Which kerncast this machine has."""
        return release()

    def begin(self, post: bytes) -> bytes:
        """Open the device, and say what it is or why it does not come up."""
        asked = post_of(post)
        share = worker_share(asked.devices) if asked.memory_bytes is None else asked.memory_bytes
        supervisor = Supervisor(
            start=lambda device: asked.start,
            devices=[asked.start.index],
            record=self._record,
            flush=lambda: None,
            admit=self._admit,
            reset=reset_by(asked.reset),
            memory_bytes=share,
            progress=_Teller(self),
        )
        # Workers end with the thread that started them, so it lives as long as this process.
        threading.Thread(target=self._work, args=(supervisor,), daemon=True).start()
        with self._changed:
            self._changed.wait_for(lambda: self._ready is not None or self._over is not None)
            return packed(self._ready if self._ready is not None else Refused(self._over or ""))

    def give(self, chunk: bytes) -> None:
        """Take a chunk into the queue."""
        found = chunk_of(chunk)
        with self._changed:
            self._given += 1
            self._chunks.append(found)
            self._changed.notify_all()

    def give_back(self, most: int) -> list[int]:
        """The numbers of at most so many chunks that were not begun, the last first; they are not measured here any more."""
        with self._changed:
            found = [self._chunks.pop().number for _ in range(min(most, len(self._chunks)))]
            self._given -= len(found)
            return found

    def fetch(self, seconds: float, linger: float) -> bytes:
        """What happened since the last call. It waits `seconds` for something, then `linger` for more."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._news), seconds)
            if self._news and linger:
                self._changed.wait_for(lambda: self._urgent or len(self._news) >= MANY, linger)
            found, self._news, self._urgent = self._news, [], False
            return packed(found)

    def hardware(self, device: str) -> bytes:
        """What the tools of this machine say about it."""
        return packed(capture(device))

    # -- in the thread of the supervisor -----------------------------------------------------------------

    def _work(self, supervisor: Supervisor) -> None:
        try:
            ready = supervisor.connect()
            with self._changed:
                self._ready = ready
                self._changed.notify_all()
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: bool(self._chunks))
                supervisor.run(_Queue(self), lambda: False)
                with self._changed:
                    if not self._chunks:
                        self._tell(Idle(self._given), urgent=True)
        except Exception as error:  # whatever it is, this device measures no more, and the driver must know
            with self._changed:
                self._over = words_of(error)
                self._tell(Lost(self._over), urgent=True)
        finally:
            supervisor.close()

    def next_chunk(self) -> Chunk | None:
        """The next chunk of the queue; from now on it is measured here."""
        with self._changed:
            if not self._chunks:
                self._urgent = bool(self._news)
                self._changed.notify_all()
                return None
            return self._chunks.popleft()

    def _admit(self, index: str, ready: Ready) -> None:
        """A device that comes back must be what it was: the rows of one dataset are of one device and software."""
        was = self._ready
        if was is not None and (was.device["name"], was.software) != (ready.device["name"], ready.software):
            raise InvalidValue(
                f"device {index} was {was.device['name']} with {software_text(was.software)} and came back as "
                f"{ready.device['name']} with {software_text(ready.software)}"
            )

    def _record(self, item: Item, result: Result, block: int, device_index: str, overrules: bool = False) -> None:
        with self._changed:
            self._tell(Measured(result, block, item if overrules else None))

    def say(self, text: str) -> None:
        """A sentence for the driver to show."""
        with self._changed:
            self._tell(Said(text))

    def _tell(self, news: News, *, urgent: bool = False) -> None:
        self._news.append(news)
        self._urgent = self._urgent or urgent
        self._changed.notify_all()


class _Queue(Iterator[Chunk]):
    """The chunks of a keeper. It may end and later have more, unlike a generator."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper

    def __next__(self) -> Chunk:
        found = self._keeper.next_chunk()
        if found is None:
            raise StopIteration
        return found


class _Teller(Progress):
    """Passes on what the supervisor says."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper

    def say(self, text: str) -> None:
        self._keeper.say(text)
