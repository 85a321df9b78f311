"""An artefact called from Python, through ctypes."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kerncast.core.arrays import Floats, Ints
from kerncast.core.op import Family
from kerncast.errors import BadFile, InvalidValue
from kerncast.models.answer import C_STATUSES, C_TIER_NAMES, Answered
from kerncast.native.header import MESSAGE_BYTES
from kerncast.native.overrides import Decided


@dataclass(frozen=True)
class Reply:
    """A reply of the artefact; unknown numbers are negative."""

    status: Answered
    tier: str
    candidate: int
    parameter: int
    time_ns: float
    lower_ns: float
    upper_ns: float
    efficiency: float
    pin: int
    message: str


class Binding:
    """One loaded artefact with one context; threads take turns."""

    def __init__(self, file: Path, family: Family, schema: int, prefix: str = "kerncast") -> None:
        self.family, self._schema = family, schema
        self._open(file, prefix)
        context = ctypes.c_void_p()
        status = self._function("create_checked")(schema, ctypes.byref(context))
        if status:
            raise BadFile(f"{file} cannot be used: {C_STATUSES[status]}; export it again")
        self._begin(context, len(family.problem.parameters), max(1, len(family.config.parameters)))
        self.candidates = int(self._function("candidates")())

    def _open(self, file: Path, prefix: str) -> None:
        """Load the library and declare its functions."""
        self._file, self.prefix = file, prefix
        try:
            self._library = ctypes.CDLL(str(file))
            self._declare()
        except (OSError, AttributeError) as error:
            raise BadFile(f"{file} is not an artefact of this kerncast ({error}): export it again") from error

    def _begin(self, context: ctypes.c_void_p, problems: int, configs: int) -> None:
        """Take over a context, and prepare the memory of problems and answers."""
        self._context, self._problems, self._configs = context, problems, configs
        self.answer_type = _answer_type(configs)
        self._turn = threading.Lock()
        self._problem = (ctypes.c_int64 * self._problems)()
        self._one = np.zeros(1, self.answer_type)
        self._one_address = self._one.ctypes.data
        # The same memory as a ctypes structure: one field can be read without unpacking the whole row.
        self._slot = _answer_structure(self._configs).from_address(self._one_address)
        self._select = self._function("select")

    def _function(self, name: str) -> Any:
        return getattr(self._library, f"{self.prefix}_{name}")

    def _declare(self) -> None:
        for name, (arguments, result) in self._shapes().items():
            function = self._function(name)
            function.argtypes, function.restype = arguments, result

    def _shapes(self) -> dict[str, tuple[list[Any], Any]]:
        """By function: its arguments and its result."""
        pointer, number = ctypes.c_void_p, ctypes.c_int
        return {
            "create_checked": ([ctypes.c_uint64, pointer], number),
            "destroy": ([pointer], None),
            "select": ([pointer, pointer, number, pointer], number),
            "select_many": ([pointer, pointer, ctypes.c_size_t, number, pointer], None),
            "rank": ([pointer, pointer, number, pointer, ctypes.c_size_t, pointer], number),
            "scores": ([pointer, pointer, number, pointer, pointer, ctypes.c_size_t], number),
            "predict": ([pointer, pointer, pointer], number),
            "features": ([pointer, pointer, pointer, ctypes.c_size_t], number),
            "query_json": ([pointer, ctypes.c_char_p, ctypes.c_size_t, pointer, ctypes.c_size_t, pointer], number),
            "candidates": ([], ctypes.c_int32),
            "set_available": ([pointer, pointer, ctypes.c_size_t], number),
            "pin": ([pointer, pointer, ctypes.c_int32, pointer], number),
            "clear_overrides": ([pointer], number),
        }

    def _stateless(self, name: str, *arguments: Any) -> int:
        """Call a function that needs no context of an artefact."""
        return int(self._function(name)(*arguments))

    def close(self) -> None:
        """Free the context."""
        if self._context:
            self._function("destroy")(self._context)
            self._context = ctypes.c_void_p()

    def __del__(self) -> None:
        if getattr(self, "_context", None):
            self.close()

    def _fill(self, numbers: Sequence[int]) -> Any:
        self._problem[:] = list(numbers)
        return self._problem

    def quick(self, numbers: list[Any], tier: int) -> tuple[int, int, float, float, float, float, int] | Reply:
        """Tier, candidate, time, bounds, efficiency and pin of one problem, for hot paths; the whole reply if it is not ok."""
        with self._turn:
            self._problem[:] = numbers
            if self._select(self._context, self._problem, tier, self._one_address):
                return reply_of(self._one[0])
            slot = self._slot
            return slot.tier, slot.candidate, slot.time_ns, slot.lower_ns, slot.upper_ns, slot.efficiency, slot.pin

    def override(self, decided: Decided) -> None:
        """Take over which candidates exist and which choices are fixed, between two questions."""
        mask, keys = np.ascontiguousarray(decided.available, np.uint8), np.ascontiguousarray(decided.patterns, np.int64)
        with self._turn:
            self._function("clear_overrides")(self._context)
            self._function("set_available")(self._context, mask.ctypes.data, len(mask))
            for key, candidate in zip(keys, decided.pinned.tolist(), strict=True):
                refused = self._function("pin")(self._context, key.ctypes.data, candidate, self._one_address)
                # What C refuses was refused when the overrides were read.
                assert not refused, reply_of(self._one[0]).message

    def select(self, numbers: Sequence[int], tier: str) -> Reply:
        """Answer one problem."""
        with self._turn:
            self._select(self._context, self._fill(numbers), C_TIER_NAMES.index(tier), self._one_address)
            return reply_of(self._one[0])

    def latencies_us(self, problems: Sequence[Sequence[int]], tier: str) -> Floats:
        """Microseconds of each call, made once with a fresh context; the time of an empty call is subtracted."""
        fresh = Binding(self._file, self.family, self._schema, self.prefix)
        buffers = [(ctypes.c_int64 * self._problems)(*numbers) for numbers in problems]
        select, context, number, place = fresh._select, fresh._context, C_TIER_NAMES.index(tier), fresh._one_address
        nothing, clock = fresh._function("candidates"), time.perf_counter_ns
        found, empty = np.empty(len(buffers)), np.empty(len(buffers))
        for i, buffer in enumerate(buffers):
            begin = clock()
            nothing()
            between = clock()
            select(context, buffer, number, place)
            found[i], empty[i] = clock() - between, between - begin
        return np.maximum(found - np.median(empty), 0.0) / 1e3 if len(buffers) else np.zeros(1)

    def select_many(self, numbers: Ints, tier: str) -> npt.NDArray[np.void]:
        """Answer many problems: a structured array with one row each."""
        problems = np.ascontiguousarray(numbers, np.int64)
        answers = np.zeros(len(problems), self.answer_type)
        with self._turn:
            self._function("select_many")(
                self._context, problems.ctypes.data, len(problems), C_TIER_NAMES.index(tier), answers.ctypes.data
            )
        return answers

    def rank(self, numbers: Sequence[int], tier: str, k: int) -> list[Reply]:
        """The k best configs; a refusal is a list of one reply."""
        answers, count = np.zeros(max(1, k), self.answer_type), ctypes.c_size_t()
        with self._turn:
            status = self._function("rank")(
                self._context,
                self._fill(numbers),
                C_TIER_NAMES.index(tier),
                answers.ctypes.data,
                len(answers),
                ctypes.byref(count),
            )
        # A problem unlike all measured ones has a status and a ranking.
        return [reply_of(answers[i]) for i in range(count.value or int(bool(status)))]

    def scores(self, numbers: Sequence[int], tier: str, size: int) -> tuple[Floats, Floats]:
        """Scores and times of a tier's configs; infinite and negative where one cannot run."""
        scores, times = np.empty(max(1, size)), np.empty(max(1, size))
        with self._turn:
            status = self._function("scores")(
                self._context, self._fill(numbers), C_TIER_NAMES.index(tier), scores.ctypes.data, times.ctypes.data, size
            )
        if status:
            raise InvalidValue(f"the artefact does not score {list(numbers)}: {C_STATUSES[status]}")
        return scores[:size], times[:size]

    def predict(self, numbers: Sequence[int], config: Sequence[int]) -> Reply:
        """Predict the time of one config."""
        given = (ctypes.c_int64 * self._configs)(*config)
        with self._turn:
            self._stateless("predict", self._fill(numbers), given, self._one_address)
            return reply_of(self._one[0])

    def features(self, numbers: Sequence[int], config: Sequence[int], count: int) -> Floats:
        """The features of one vector, as the model reads them."""
        given, found = (ctypes.c_int64 * self._configs)(*config), np.empty(max(1, count))
        with self._turn:
            status = self._stateless("features", self._fill(numbers), given, found.ctypes.data, len(found))
        if status:
            raise InvalidValue(f"the artefact does not describe {list(numbers)} {list(config)}: {C_STATUSES[status]}")
        return found[:count]

    def query(self, text: str | bytes) -> bytes:
        """Answer a JSON request with the unparsed reply."""
        data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        # A reply is seldom longer than this; a second call with a larger buffer would compute everything again.
        room, needed = 4096 + 4 * len(data), ctypes.c_size_t()
        while True:
            out = ctypes.create_string_buffer(room)
            with self._turn:
                status = self._function("query_json")(self._context, data, len(data), out, room, ctypes.byref(needed))
            if C_STATUSES[status] is not Answered.TOO_SMALL:
                return ctypes.string_at(out, needed.value - 1)
            room = needed.value + 1


def _answer_type(configs: int) -> np.dtype[np.void]:
    fields: list[Any] = [
        ("status", "i4"), ("tier", "i4"), ("candidate", "i4"), ("parameter", "i4"), ("config", "i8", (configs,)),
        ("time_ns", "f8"), ("lower_ns", "f8"), ("upper_ns", "f8"), ("efficiency", "f8"), ("pin", "i4"),
        ("label", np.uintp), ("message", f"S{MESSAGE_BYTES}"),
    ]  # fmt: skip
    return np.dtype(fields, align=True)


def _answer_structure(configs: int) -> type[ctypes.Structure]:
    class Slot(ctypes.Structure):
        _fields_ = [
            ("status", ctypes.c_int32), ("tier", ctypes.c_int32), ("candidate", ctypes.c_int32), ("parameter", ctypes.c_int32),
            ("config", ctypes.c_int64 * configs), ("time_ns", ctypes.c_double), ("lower_ns", ctypes.c_double),
            ("upper_ns", ctypes.c_double), ("efficiency", ctypes.c_double), ("pin", ctypes.c_int32), ("label", ctypes.c_void_p),
            ("message", ctypes.c_char * MESSAGE_BYTES),
        ]  # fmt: skip

    return Slot


def reply_of(row: Any) -> Reply:
    """A row of answers."""
    status, tier, candidate, parameter, _, time_ns, lower_ns, upper_ns, efficiency, pin, _, message = row.item()
    # Behind the end of a text stands what an earlier, longer one left.
    text = message.partition(b"\0")[0].decode("utf-8", "replace")
    return Reply(
        C_STATUSES[status], C_TIER_NAMES[tier], candidate, parameter, time_ns, lower_ns, upper_ns, efficiency, pin, text
    )
