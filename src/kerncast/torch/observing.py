"""Record what torch.compile times while it autotunes: `with kerncast.torch.observe("data"):`.

Inductor calls a function after each autotune. That function writes one line to a log and returns; whatever goes wrong in it is
logged once and forgotten, since an exception would end the compilation. The lines become rows of a dataset afterwards
(`observed_rows`).
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kerncast.errors import NotFound
from kerncast.measuring.backends.inductor.build import cpu_software
from kerncast.torch.describing import describe_choice, describe_inputs, describe_score_function, describe_tensor
from kerncast.torch.observed_log import FOLDER, ObservedLog, refuse_foreign
from kerncast.torch.reporting import say, say_what_is_off
from kerncast.torch_entry import MODEL, OBSERVE

if TYPE_CHECKING:
    from kerncast.torch.observed_rows import Gathered


DRIVERS = ("/sys/module/nvidia/version", "/sys/module/amdgpu/version")
# What `backends.triton.device_profile` reads of a GPU.
PROPERTIES = (
    "name", "multi_processor_count", "warp_size", "shared_memory_per_block_optin", "shared_memory_per_block",
    "shared_memory_per_multiprocessor", "max_threads_per_block", "L2_cache_size", "total_memory", "gcnArchName",
)  # fmt: skip


def software(device: str) -> dict[str, str]:
    """torch, and for a CPU its instruction set and the compiler, as the `inductor` backend says them; for a GPU Triton, the
    runtime and the driver."""
    if device != "cpu":
        return _gpu_software()
    try:
        return dict(cpu_software())
    except Exception:  # no compiler, or a torch that names these functions otherwise: the times are recorded all the same
        return {"torch": str(sys.modules["torch"].__version__)}


@cache
def _gpu_software() -> dict[str, str]:
    torch = sys.modules["torch"]
    found = {"torch": str(torch.__version__)}
    triton = sys.modules.get("triton")
    if triton is not None:
        found["triton"] = str(triton.__version__)
    version = torch.version
    if getattr(version, "hip", None) or getattr(version, "cuda", None):
        found["runtime"] = f"rocm {version.hip}" if version.hip else f"cuda {version.cuda}"
    for path in DRIVERS:
        with contextlib.suppress(OSError):
            if text := Path(path).read_text().strip():
                return {**found, "driver": text}
    return found


@cache
def gpu(device: str) -> dict[str, Any]:
    """What torch says about a GPU; nothing if it fails."""
    torch = sys.modules["torch"]
    try:
        properties = torch.cuda.get_device_properties(device)
    except Exception:
        return {}
    found = {name: getattr(properties, name, None) for name in PROPERTIES}
    if not getattr(torch.version, "hip", None):
        found["gcnArchName"] = None
    return {name: value for name, value in found.items() if isinstance(value, str | int)}


# Frames between Inductor's function that times choices and ours, at most: others may wrap ours.
FRAMES = 24
ENDING_SECONDS = 300
# By path, who listens for it in this process.
_LISTENING: dict[Path, _Listener] = {}
# Functions for the selector that Inductor will make with its first choice.
_WAITING: list[Callable[..., None]] = []
# Threads begin and end one after the other; the selector may be made in yet another one.
_IN_TURN = threading.RLock()


def observe(path: str | Path, *, again: bool = False) -> Observer:
    """Record every autotune of torch.compile in the dataset `path`, which is made if there is none.

    Use it in a `with` block, or call `start()` and `stop()`. What Inductor finds in its own cache of timings is not measured
    and not recorded; `again` makes it measure these too, and repeats within a model, by turning that cache off.
    """
    return Observer(Path(path), again=again)


class Observer:
    """Records autotunes from `start()` to `stop()`. Afterwards `gathered` says what became of them."""

    def __init__(self, path: Path, *, again: bool = False) -> None:
        self.path, self.again = path.absolute(), again
        self.gathered: Gathered | None = None
        self._listener: _Listener | None = None
        self._patches = contextlib.ExitStack()

    def start(self) -> Observer:
        """Begin to listen."""
        if self._listener is None:
            refuse_foreign(self.path)
            self._listener = _Listener.at(self.path)
            if self.again:
                config = import_module("torch._inductor.config")
                if hasattr(config, "autotune_local_cache"):
                    self._patches.enter_context(config.patch(autotune_local_cache=False))
        return self

    def stop(self) -> Observer:
        """Stop listening, and turn what was seen into rows. A fault of the disk is logged: what was seen stays in its log."""
        if self._listener is None:
            return self
        self._patches.close()
        self._listener.leave()
        self._listener = None
        from kerncast.torch.observed_rows import gather

        try:
            self.gathered = gather(self.path)
        except Exception as error:  # the program that was listened to has done its work
            say(f"what torch.compile timed stays in {self.path / FOLDER}", error)
        return self

    def __enter__(self) -> Observer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = "listening" if self._listener is not None else "stopped" if self.gathered is None else str(self.gathered)
        return f"Observer({str(self.path)!r}; {state})"


def observe_from_environment(path: str) -> None:
    """Listen until the process ends, for a program that one cannot edit."""
    refuse_foreign(Path(path).absolute())
    listener = _Listener.at(Path(path).absolute())
    atexit.register(_end, listener)
    say_what_is_off(OBSERVE)


def _end(listener: _Listener) -> None:
    """Let another process turn the log into rows: this one may not start threads any more, and need not load polars."""
    had_records = listener.log.is_open
    listener.leave()
    if not had_records:
        return
    code = "import sys; sys.path.append(sys.argv[2]); from kerncast.torch.observed_rows import gather; gather(sys.argv[1])"
    home = str(Path(import_module("kerncast").__file__ or "").parents[1])
    quiet = {name: value for name, value in os.environ.items() if name not in (OBSERVE, MODEL)}
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", code, str(listener.path), home],
            env=quiet, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ENDING_SECONDS, check=False,
        )  # fmt: skip
        said = done.stderr.strip().splitlines()[-1:] if done.returncode else []
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        said = [str(error)]
    if said:
        say(f"what torch.compile timed stays in {listener.path / FOLDER}", said[0])


class _Listener:
    """The function that Inductor calls, and the log it writes; one for each path, however often it is asked for."""

    def __init__(self, path: Path) -> None:
        from kerncast.library import devices
        from kerncast.version import __version__

        cpu = devices.local()
        profile = {"name": cpu.name, "title": cpu.title, "numbers": dict(cpu.numbers), "sources": dict(cpu.sources)}
        self.path, self.askers, self.failures = path, 0, 0
        self.log = ObservedLog(path, {"kerncast": __version__, "cpu": profile})

        def saw(
            timings: Mapping[Any, float], name: str, input_nodes: Sequence[Any], choices: Sequence[Any], *rest: Any
        ) -> None:
            if not self.askers:
                return
            try:
                self.log.write(_record(timings, name, input_nodes, choices))
            except Exception as error:
                self.failures += 1
                if self.failures == 1:
                    say("an autotune was not recorded", error)

        self.saw: Callable[..., None] = saw

    @classmethod
    def at(cls, path: Path) -> _Listener:
        """The listener for a path."""
        with _IN_TURN:
            key = path.resolve()
            listener = _LISTENING.get(key)
            if listener is None:
                listener = cls(path)
                _register(listener.saw)
                _LISTENING[key] = listener
            listener.askers += 1
            return listener

    def leave(self) -> None:
        """One who asked leaves. The log ends, so that it can be read; the next record begins another."""
        with _IN_TURN:
            self.askers -= 1
            self.log.close()
            if not self.askers:
                _LISTENING.pop(self.path.resolve(), None)
                _unregister(self.saw)


def _register(function: Callable[..., None]) -> None:
    """Let Inductor call a function after each autotune. Its selector is not made for that: this would initialise the GPU."""
    module = _selecting()
    cache = getattr(module, "_ALGORITHM_SELECTOR_CACHE", None)
    if cache is not None:
        cache.add_feedback_saver(function)
        return
    _WAITING.append(function)
    kind = module.AlgorithmSelectorCache
    made = kind.__init__
    if getattr(made, "kerncast_waits", False):
        return

    def made_and_heard(self: Any, *arguments: Any, **options: Any) -> None:
        made(self, *arguments, **options)
        with _IN_TURN:
            if kind.__init__ is made_and_heard:
                kind.__init__ = made
            for waiting in _WAITING:
                self.add_feedback_saver(waiting)
            _WAITING.clear()

    made_and_heard.kerncast_waits = True  # type: ignore[attr-defined]
    kind.__init__ = made_and_heard


def _unregister(function: Callable[..., None]) -> None:
    """Remove our own function; those of others stay."""
    if function in _WAITING:
        _WAITING.remove(function)
    cache = getattr(_selecting(), "_ALGORITHM_SELECTOR_CACHE", None)
    functions = getattr(cache, "feedback_saver_fns", None)
    if cache is not None and functions:
        # Not changed in place: another thread may be calling them.
        cache.feedback_saver_fns = [other for other in functions if other is not function]


def _selecting() -> Any:
    try:
        module = import_module("torch._inductor.select_algorithm")
    except ImportError as error:
        raise NotFound(f"torch.compile cannot be observed: {error}; pip install 'kerncast[torch]'") from error
    if not hasattr(getattr(module, "AlgorithmSelectorCache", None), "add_feedback_saver"):
        raise NotFound("torch.compile cannot be observed: this torch has no add_feedback_saver; use torch 2.7 or later")
    return module


# -- a record ------------------------------------------------------------------------------------------


def _record(timings: Mapping[Any, float], name: str, nodes: Sequence[Any], choices: Sequence[Any]) -> dict[str, Any]:
    """Everything that is known about an autotune."""
    torch = sys.modules["torch"]
    layout = next((getattr(choice, "layout", None) for choice in choices), None)
    output = {} if layout is None else describe_tensor(layout)
    # Choices that did not compile are in neither; those that were not timed are only in `choices`.
    listed = {**dict.fromkeys(choices), **timings}
    device = str(output.get("device", "cpu"))
    record = {
        "op": str(name),
        "at": time.time(),
        "timed": _timed_now(),
        "inputs": describe_inputs(nodes),
        "output": output,
        # Milliseconds; null: it failed. A choice that was not timed has none.
        "choices": [
            describe_choice(choice) | ({} if ms is None else {"ms": float(ms) if math.isfinite(ms) else None})
            for choice, ms in listed.items()
        ],
        "threads": torch.get_num_threads(),
        "precision": torch.get_float32_matmul_precision(),
        "software": software(device.partition(":")[0]),
    }
    if device.startswith("cuda"):
        record["gpu"] = gpu(device)
    if name == "flex_attention":
        record["mod"] = _score_function()
    return record


def _callers() -> Iterator[Any]:
    frame = sys._getframe(3)
    for _ in range(FRAMES):
        if frame is None:
            return
        yield frame
        frame = frame.f_back  # type: ignore[assignment]


def _timed_now() -> bool | None:
    """Whether Inductor measured just now, or found every time in its cache; None: it does not say.

    Our function gets the times alone, but the function that calls it knows: from torch 2.9 on in a variable, before that in
    a cache which is empty until something is measured.
    """
    for frame in _callers():
        code = frame.f_code
        if "has_autotuned" in code.co_varnames or "has_autotuned" in code.co_cellvars:
            return bool(frame.f_locals.get("has_autotuned"))
        if "make_benchmark_fn" in code.co_varnames or "make_benchmark_fn" in code.co_cellvars:
            info = getattr(frame.f_locals.get("make_benchmark_fn"), "cache_info", None)
            return None if info is None else bool(info().currsize)
    return None


def _score_function() -> dict[str, int]:
    """The size of flex attention's score function, as AutoHeuristic counts it."""
    for frame in _callers():
        if "subgraph" not in frame.f_code.co_varnames and "subgraph" not in frame.f_code.co_cellvars:
            continue
        module = getattr(frame.f_locals.get("subgraph"), "graph_module", None)
        if module is not None:
            return describe_score_function(module.graph)
    return {}
