"""Messages between the supervisor and a worker: msgpack frames over pipes, and the worker's position in shared memory."""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from kerncast.library.declared.declaration import Declaration

Values = dict[str, int | bool | str | None]


class Policy(msgspec.Struct, frozen=True):
    """How a vector is timed; every choice ends up in its row."""

    samples: int = 16
    """Maximum number of passes, disturbed ones included."""
    fewest_samples: int = 4
    """Quiet samples close to the fastest that a label needs."""
    close: float = 0.05
    """How close. Noise on a shared machine only makes kernels slower, so the fastest samples are the true ones."""
    sample_ns: int = 300_000
    """Minimum length of a timed region: shorter kernels loop inside it."""
    warmup_ns: int = 1_000_000
    verify: bool = True
    cache: str = "warm"
    give_up: float = 3.0
    """Stop sampling what is this many times slower than the best of its problem."""
    disturbed: float = 1.08
    """A sample next to a sentinel this many times slower than its floor does not count if there are others."""
    deadline_floor_ns: int = 2_000_000_000
    deadline_ceiling_ns: int = 10_000_000_000
    deadline_factor: float = 30.0
    memory_bytes: int = 0
    """What a worker may allocate before an allocation fails (0: no limit); data, not reserved address space."""
    seed: int = 0


class Item(msgspec.Struct, frozen=True, array_like=True):
    """One vector to measure. `best_ns` is the best time known for its problem."""

    key: str
    problem: Values
    config: Values
    best_ns: float = 0.0


class Start(msgspec.Struct, frozen=True, tag="start"):
    """The first frame to a worker: what it will run, and how."""

    backend: str
    family: str
    index: str
    policy: Policy
    options: dict[str, str] = {}
    """What the backend is configured with."""
    build_jobs: int = 2
    declaration: Declaration | None = None
    """The family, if a file declares it."""


class Chunk(msgspec.Struct, frozen=True, tag="chunk"):
    """Vectors to measure together."""

    number: int
    items: list[Item]
    witness: Item | None = None
    """A vector that was right in another process, in case this one has none that can show whether it is still sound."""


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """A worker's backend is up."""

    device: dict[str, Any]
    software: dict[str, str]
    isolated: bool = False
    """Whether every vector runs in a process of its own, so that none can spoil another."""


class Result(msgspec.Struct, frozen=True, tag="result", omit_defaults=True):
    """How one vector ended; the fields are columns of a measurement."""

    key: str
    status: str
    time_ns: float | None = None
    time_ns_min: float | None = None
    time_ns_mean: float | None = None
    time_ns_std: float | None = None
    time_ns_mad: float | None = None
    samples: int | None = None
    inner_loops: int | None = None
    warmup_ns: float | None = None
    compile_ns: float | None = None
    max_abs_err: float | None = None
    sentinel_ns: float | None = None
    started_at: str | None = None
    error: str | None = None
    label: str | None = None
    disturbed_samples: int = 0
    """Samples that were taken while the machine was disturbed; not stored, shown live."""
    broken_by: int = 0
    """The process cannot run the sentinel any more, or has none: one of so many first vectors of the chunk, or an earlier one,
    broke it. 0: it can. Not stored."""
    unsure: bool = False
    """Too few quiet samples: worth another visit when everything else is done."""


class Done(msgspec.Struct, frozen=True, tag="done"):
    """A chunk is finished; `spoiled` asks for a new process before the next one."""

    number: int
    spoiled: bool = False
    wrong: str = ""
    """The key of a vector that was right in this process and is not any more; what has no result since then, gets none."""


class FailedStart(msgspec.Struct, frozen=True, tag="broken"):
    """The backend did not start."""

    error: str


class Stuck(msgspec.Struct, frozen=True, tag="stuck"):
    """The machine around the kernels failed (a full disk, a missing compiler): no vector is to blame."""

    error: str


Reply = Ready | Result | Done | FailedStart | Stuck
Order = Start | Chunk

_encoder = msgspec.msgpack.Encoder()
_LENGTH = struct.Struct("<I")


def frame(message: Order | Reply) -> bytes:
    """A message with its length in front."""
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


class Frames:
    """Cuts a byte stream into messages."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[Any]) -> None:
        self.decoder = decoder
        self.buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Any]:
        """The messages that are complete now."""
        self.buffer += data
        start = 0
        while len(self.buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self.buffer, start)
            end = start + _LENGTH.size + length
            if len(self.buffer) < end:
                break
            yield self.decoder.decode(memoryview(self.buffer)[start + _LENGTH.size : end])
            start = end
        del self.buffer[:start]


reply_decoder: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)
order_decoder: msgspec.msgpack.Decoder[Order] = msgspec.msgpack.Decoder(Order)


class Position:
    """Shared memory in which a worker says which vector it is at, and by when the current step must end.

    The deadline is cleared before the vector changes, so that the supervisor never pairs a new vector with
    an old deadline. Times are CLOCK_MONOTONIC, which all processes of one machine share.
    """

    SIZE = mmap.PAGESIZE
    _WORDS = struct.Struct("<qq")
    IDLE = -1
    ALL = -2
    """The step serves all vectors of the chunk at once: they are being compiled."""
    PROOF = -3
    """A vector of an earlier chunk shows whether the process is still sound."""

    def __init__(self, fd: int) -> None:
        self.memory = mmap.mmap(fd, self.SIZE)

    @classmethod
    def create(cls) -> tuple[Position, int]:
        """A new word and the descriptor that a worker inherits."""
        fd = os.memfd_create("kerncast-progress", 0)
        os.ftruncate(fd, cls.SIZE)
        position = cls(fd)
        position.idle()
        return position, fd

    def idle(self) -> None:
        """Say that the worker is between vectors."""
        self._WORDS.pack_into(self.memory, 0, self.IDLE, 0)

    def at(self, item: int, allowed_ns: int) -> None:
        """A step of vector `item` (or of `ALL`) begins and must end within `allowed_ns`."""
        struct.pack_into("<q", self.memory, 8, 0)
        struct.pack_into("<q", self.memory, 0, item)
        struct.pack_into("<q", self.memory, 8, time.monotonic_ns() + allowed_ns)

    def read(self) -> tuple[int, int]:
        """The vector (or IDLE, or ALL) and the deadline (0: none)."""
        item, deadline = self._WORDS.unpack_from(self.memory, 0)
        return int(item), int(deadline)
