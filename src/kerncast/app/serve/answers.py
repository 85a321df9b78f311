"""Answers to questions of `POST /v1/query`: those for one compiled model at once, all others in threads.

Compiled code answers in microseconds, so the event loop does that. Whatever may wait for a file, for Python or for a compiler
is a job of threads. Jobs take turns step by step, and a piece of a list is a step: a long list holds up nobody else.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

import msgspec

from kerncast.answering.query import Query
from kerncast.answering.routes import Address, Route
from kerncast.app.serve.background import FIRST_PIECE, THREADS, HasLeft, Jobs, ShippedCode, piece_after
from kerncast.app.serve.replies import Names, RequestRefused
from kerncast.app.serve.schema import BadRequest
from kerncast.app.serve.settings import Settings
from kerncast.app.serve.sources import Sources
from kerncast.errors import KerncastError, quoted

# Addresses whose model is remembered.
MOST_ADDRESSES = 4096
# What is longer takes more than microseconds to read, and a thread does that.
LONGEST_QUESTION = 4096
# Questions whose replies are kept, and how long these may be: services ask about the same shapes again.
MOST_KEPT, LONGEST_KEPT = 4096, 4096
# Members of a reply that may quote an error, which may name a path.
TEXTS = (b'"message":', b'"note":', b'"warning":')
_ONE = msgspec.json.Decoder(Address)
_RAW = msgspec.json.Decoder(list[msgspec.Raw])
T = TypeVar("T")


class QueryAnswers:
    """Answers from the sources as they are now."""

    def __init__(self, sources: Sources, settings: Settings, jobs: Jobs, names: Names, compiled: ShippedCode) -> None:
        self._sources, self._settings, self._jobs, self._names = sources, settings, jobs, names
        self.version = sources.version
        self._search = sources.finding(settings.software, settings.strict, compiled.ask)
        self._models: dict[Address, Route] = {}
        """The models of the store and of paths that answer all questions with an address."""
        self._at_once = Query(self._models.__getitem__, selectors=sources.selector_at)
        self._in_threads = [Query(self._find, selectors=sources.selector_at) for _ in range(THREADS)]
        self._free = SimpleQueue[Query]()
        for query in self._in_threads:
            self._free.put(query)
        self._kept: OrderedDict[bytes, bytes] = OrderedDict()
        """Replies to single questions that threads gave; used by the event loop alone."""

    def _find(self, address: Address) -> Route:
        """Who answers. If it is one model whatever the problem is, it is remembered for the event loop."""
        route = self._search(address)
        if route.target is not None:
            if len(self._models) >= MOST_ADDRESSES:
                self._models.clear()
            self._models[address] = route
        return route

    async def answer(self, data: bytes, has_left: HasLeft) -> bytes:
        """The reply to a question or to a list of questions."""
        if data.lstrip()[:1] == b"[":
            return await self._jobs.run(self._list(data).__next__, has_left)
        if len(data) > LONGEST_QUESTION:
            return await self._jobs.run(lambda: self._long(data), has_left)
        if self._is_quick(_decoded(_ONE, data), data):
            return self._at_once.answer(data)
        kept = self._kept  # when a model answers otherwise, there are new ones
        if data in kept:
            kept.move_to_end(data)
            return kept[data]
        reply = await self._jobs.run(lambda: self._reply(data), has_left)
        if len(reply) <= LONGEST_KEPT and b'"status":"ok"' in reply:
            kept[data] = reply
            if len(kept) > MOST_KEPT:
                kept.popitem(last=False)
        return reply

    def _is_quick(self, address: Address, data: bytes) -> bool:
        """Whether compiled code answers a question in microseconds; one that names its tier may ask about every config."""
        route = self._models.get(address)
        target = None if route is None else route.target
        return target is not None and b'"tier"' not in data and self._sources.is_quick(target.path, target.device)

    def _long(self, data: bytes) -> bytes:
        """The reply to a long question."""
        _decoded(_ONE, data)
        return self._reply(data)

    def _reply(self, data: bytes, whole: ListText | None = None, first: int = 0) -> bytes:
        """What a thread replies to a request, or to the piece of a list that begins with its question number `first`."""
        query = self._free.get()
        try:
            reply = query.answer(data)
        finally:
            self._free.put(query)
        if not any(name in reply for name in TEXTS):
            return reply
        value = msgspec.json.decode(reply)
        for each in value if isinstance(value, list) else [value]:
            if whole is not None and "position" in each:
                each["position"] = whole.position(each["position"], first)
        return self._names.encoded(value)

    def _list(self, data: bytes) -> Iterator[bytes | None]:
        """The reply to a list, after as many steps as there are pieces: each is answered while others wait for their turn."""
        text = ListText(data, _decoded(_RAW, data))
        if len(text.items) > self._settings.max_batch:
            raise RequestRefused(
                413, "too_many_questions",
                f"a request may have {self._settings.max_batch:,} questions, and this one has {len(text.items):,}: send "
                "several requests",
            )  # fmt: skip
        replies, done, size = [], 0, FIRST_PIECE
        while done < len(text.items):
            began = time.perf_counter()
            reply = self._reply(text.piece(done, size), text, done)
            if reply[:1] != b"[":  # a text that is not JSON is refused as a whole
                replies = [reply]
                break
            replies.append(reply)
            done += size
            size = piece_after(size, time.perf_counter() - began)
            yield None
        yield replies[0] if len(replies) == 1 else b"[" + b",".join(memoryview(reply)[1:-1] for reply in replies) + b"]"

    # -- what changes -----------------------------------------------------------------------------------

    def forget(self, path: Path) -> None:
        """Forget what was answered: a model has changed."""
        for query in (self._at_once, *self._in_threads):
            query.forget(path)
        self._kept = OrderedDict()

    def warmed(self, before: QueryAnswers) -> QueryAnswers:
        """Ready for what was asked before a change; those that answered then go on until what is new is built."""
        for address in list(before._models):
            try:
                target = self._find(address).target
                if target is not None:
                    self._sources.selector_at(target.path, target.device)
                    self._sources.builder.wait(target.path)
            except KerncastError:
                continue  # there is no such model any more, which answers say
        return self


class ListText:
    """The text of a list of questions, which is answered in pieces."""

    def __init__(self, data: bytes, items: list[msgspec.Raw]) -> None:
        self._data, self.items = data, items

    def piece(self, first: int, size: int) -> bytes:
        """Some of the questions, as a list."""
        return b"[" + b",".join(self.items[first : first + size]) + b"]"

    @cached_property
    def _places(self) -> tuple[list[int], list[int]]:
        """Where each question begins in the text, and in the same list without spaces; looked for only if one is wrong."""
        starts, at = [], 0
        for item in self.items:
            starts.append(self._data.index(item, at))
            at = starts[-1] + len(item)
        return starts, list(accumulate((len(item) + 1 for item in self.items), initial=1))

    def position(self, position: int, first: int) -> int:
        """Where in the text is what has this position in the piece that begins with question number `first`."""
        starts, joined = self._places
        position += joined[first] - 1
        place = min(max(bisect_right(joined, position) - 1, 0), len(starts) - 1)
        return starts[place] + position - joined[place]


def _decoded(decoder: msgspec.json.Decoder[T], data: bytes) -> T:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(
            "the body must be a JSON object, or a list of them, whose op, family, device and software are texts, and this is "
            f"not ({quoted(error)}): see /openapi.json"
        ) from error
