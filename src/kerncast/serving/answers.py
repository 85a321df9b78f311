"""Answers to JSON questions: those that are quick at once, all others in threads, so that nobody waits for a compiler.

A question is quick if one with the same op, family, device and software was answered before, and in little time. The first
one of each kind finds its model, loads it, compiles it if it is trusted, and is answered by a thread. Quick answers have
selectors of their own: a list that a thread answers meanwhile does not hold them up.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

import msgspec

from kerncast.errors import quoted
from kerncast.querying.finding import Address
from kerncast.querying.predicting import Ask
from kerncast.querying.query import Query
from kerncast.selecting.selector import Selector
from kerncast.serving.compiled import Compiled
from kerncast.serving.declarations import BadRequest
from kerncast.serving.metrics import Metrics
from kerncast.serving.replying import Refused
from kerncast.serving.settings import Settings
from kerncast.serving.sources import Sources
from kerncast.serving.steady import settle

# What the event loop may spend on one question; a slower one is for a thread.
QUICK_SECONDS = 0.002
# One that takes so many times as long was held up by nothing else than itself, and its kind is no longer quick.
SLOW_FACTOR = 25
# A list of at most so many bytes is answered like a single question.
SHORT_LIST = 2048
# Kinds of quick questions that are remembered, each with one example to warm the models that come after a change.
MOST_QUICK = 512
# Questions that are not quick whose replies are kept, and how long both may be: services ask about the same shapes again.
MOST_KEPT, LONGEST_KEPT = 4096, 4096
# Jobs that run or wait for a thread.
MOST_WAITING = 64
THREADS = 2
# Those who ask models at the same time: the threads and the event loop.
ASKERS = 1 + THREADS
_ONE = msgspec.json.Decoder(Address)
_MANY = msgspec.json.Decoder(list[Address])
_RAW = msgspec.json.Decoder(list[msgspec.Raw])
T = TypeVar("T")


class _NotLoaded(Exception):
    """A question is for a model that the event loop would have to wait for."""


class Jobs:
    """Threads for what takes long, with a limit on how much may wait."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="kerncast-serve")

    async def run(self, job: Callable[[], T]) -> T:
        """The result of a job in a thread."""
        if self._metrics.waiting >= MOST_WAITING:
            raise Refused(
                503, "busy",
                f"at most {MOST_WAITING} long requests run or wait at a time, and so many do: try again in a second",
                ((b"retry-after", b"1"),),
            )  # fmt: skip
        self._metrics.waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, job)
        finally:
            self._metrics.waiting -= 1

    def close(self) -> None:
        """Let running jobs finish; those that wait are dropped."""
        self._pool.shutdown(wait=True, cancel_futures=True)


class Answers:
    """Answers from the sources as they are now."""

    def __init__(self, sources: Sources, settings: Settings, jobs: Jobs, compiled: Compiled) -> None:
        self._sources, self._settings, self._jobs = sources, settings, jobs
        self.version = sources.version
        self._quick = self._asker(compiled.asker(0), self._quick_selector)
        self._slow = SimpleQueue[Query]()
        slow = [self._asker(compiled.asker(number), self._own_selector) for number in range(1, ASKERS)]
        for query in slow:
            self._slow.put(query)
        self._all = [self._quick, *slow]
        self._preparing = self._warming = False
        self._quick_turn = threading.Lock()
        self._examples: dict[Address, bytes] = {}
        """The quick kinds of questions."""
        self._settled: set[tuple[str | None, ...]] = set()
        """What they are about, whose models the garbage collector need not look at."""
        self._never: set[Address] = set()
        """The kinds that were found not to be."""
        self._kept: OrderedDict[bytes, bytes] = OrderedDict()
        """Replies to single questions that are not quick; used by the event loop alone."""

    def _asker(self, ask: Ask, selectors: Callable[[Path, str | None], Selector]) -> Query:
        find = self._sources.finding(self._settings.software, self._settings.strict, ask)
        return Query(find, compile=self._sources.compile, selectors=selectors)

    def _quick_selector(self, path: Path, device: str | None) -> Selector:
        """A selector for quick questions, which a thread prepares: it may have to be compiled."""
        if not self._preparing:
            raise _NotLoaded
        return self._own_selector(path, device)

    def _own_selector(self, path: Path, device: str | None) -> Selector:
        """One more selector of a model: the same numbers, a context of its own, so that nobody waits for a turn."""
        other = self._sources.selector_at(path, device)
        if self._warming:  # those that answered before go on until then
            self._sources.builder.wait(path)
            other = self._sources.selector_at(path, device)
        if not other.is_compiled:
            return other
        return Selector(other.model, tiers=other.tiers, tier=other.tier)

    async def answer(self, data: bytes) -> bytes:
        """The reply to a question or to a list of questions."""
        if data[:1] == b"{" or data.lstrip()[:1] != b"[":
            return await self._one(data)
        if len(data) <= SHORT_LIST:
            self._check_length(data)
            quick = self._if_quick(data, *_addresses(data))
            if quick is not None:
                return quick
        return await self._jobs.run(lambda: self._list(data))

    async def _one(self, data: bytes) -> bytes:
        try:
            address = _ONE.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadRequest(_not_a_question(error)) from error
        quick = self._if_quick(data, address)
        if quick is not None:
            return quick
        kept = self._kept  # when a model answers otherwise, there are new ones
        if data in kept:
            kept.move_to_end(data)
            return kept[data]
        reply = await self._jobs.run(lambda: self._first(address, data))
        if len(data) + len(reply) <= LONGEST_KEPT and b'"status":"ok"' in reply:
            kept[data] = reply
            if len(kept) > MOST_KEPT:
                kept.popitem(last=False)
        return reply

    def _if_quick(self, data: bytes, *addresses: Address) -> bytes | None:
        """The reply if these kinds of questions are quick, and no thread is preparing one."""
        if not all(address in self._examples for address in addresses) or not addresses:
            return None
        if not self._quick_turn.acquire(blocking=False):
            return None
        try:
            started = time.thread_time()  # of this thread alone: that others are busy does not make a question slow
            reply = self._quick.answer(data)
            if time.thread_time() - started > SLOW_FACTOR * QUICK_SECONDS * len(addresses):
                for address in addresses:  # some questions of this kind are for another model, which is slow
                    self._examples.pop(address, None)
                    self._give_up(address)
            return reply
        except _NotLoaded:
            return None
        finally:
            self._quick_turn.release()

    def _first(self, address: Address, data: bytes) -> bytes:
        """Answer in a thread, and look whether this kind of question can be answered at once from now on."""
        reply = self._in_thread(data)
        if address not in self._never and len(data) <= SHORT_LIST and b'"status":"ok"' in reply:
            self.prepare(address, data)
        return reply

    def forgive(self, path: Path) -> None:
        """A model answers otherwise than before: ask it anew, and look again which kinds of questions are quick."""
        for query in self._all:
            query.forget(path)
        self._kept = OrderedDict()
        self._never.clear()

    def _give_up(self, address: Address) -> None:
        if len(self._never) >= MOST_QUICK:
            self._never.clear()
        self._never.add(address)

    def _in_thread(self, data: bytes) -> bytes:
        """The reply; there are as many to ask as there are threads."""
        query = self._slow.get()
        try:
            return query.answer(data)
        finally:
            self._slow.put(query)

    def prepare(self, address: Address, data: bytes) -> None:
        """Make a kind of question quick, if it can be: what is compiled answers in microseconds, Python in milliseconds."""
        with self._quick_turn:
            self._preparing = True
            try:
                self._quick.answer(data)
            finally:
                self._preparing = False
            if min(self._seconds(data) for _ in range(3)) > QUICK_SECONDS:
                self._give_up(address)
                return
            if len(self._examples) >= MOST_QUICK:
                self._examples.clear()
            self._examples[address] = data
        settled = (address.op, address.family, address.device)  # clients may name any software
        if settled not in self._settled:
            self._settled.add(settled)
            settle()

    def _seconds(self, data: bytes) -> float:
        """How long this thread works on a question that was asked before; it may be interrupted, so the best of some counts."""
        started = time.thread_time()
        self._quick.answer(data)
        return time.thread_time() - started

    def warmed(self, before: Answers) -> Answers:
        """Ready for the kinds of questions that were quick before a change."""
        self._warming = True
        for address, data in list(before._examples.items()):
            self.prepare(address, data)
        self._warming = False
        return self

    def _list(self, data: bytes) -> bytes:
        self._check_length(data)
        return self._in_thread(data)

    def _check_length(self, data: bytes) -> None:
        try:
            count = len(_RAW.decode(data))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadRequest(_not_a_question(error)) from error
        if count > self._settings.max_batch:
            raise Refused(
                413, "too_many_questions",
                f"a request may have {self._settings.max_batch:,} questions, and this one has {count:,}: send several requests",
            )  # fmt: skip


def _addresses(data: bytes) -> list[Address]:
    """The addresses of a list of questions; none if one of them has none."""
    try:
        return _MANY.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []


def _not_a_question(error: Exception) -> str:
    return (
        "the body must be a JSON object, or a list of them, whose op, family, device and software are texts, and this is not "
        f"({quoted(error)}): see /openapi.json"
    )
