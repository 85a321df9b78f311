"""What the driver and the keepers of devices write to each other: msgpack, so both sides see plain data only."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import msgspec

from kerncast.data.hardware import Hardware
from kerncast.measuring.messages import Chunk, Item, Ready, Result, Start
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
