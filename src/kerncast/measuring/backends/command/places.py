"""Check the programs and folders that are the same for all vectors before the first vector is measured.

Otherwise a wrong path would give every vector a failed row, and the rows would be final.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping

from kerncast.errors import NotFound
from kerncast.measuring.backends.command.benchmark import Benchmark
from kerncast.measuring.backends.command.process import located
from kerncast.measuring.backends.command.template import Scope, Value, Word, names_in

_BELOW = re.compile(r"\{([^{}]+)\}/")


def check_places(benchmark: Benchmark, static: Mapping[str, Value], words: Mapping[str, Word]) -> None:
    """Refuse a program, a folder to run in or a build folder that does not exist."""
    calls = [("argv", benchmark.argv[0], "directory", benchmark.directory)]
    if benchmark.build is not None:
        calls.append(("build.argv", benchmark.build.argv[0], "build.directory", benchmark.build.directory))
        _check_folder(benchmark, static, "build.output", _holder(benchmark.build.output, words))
    for where, program, place, folder in calls:
        if not set(names_in(folder)) <= set(static):
            continue
        _check_folder(benchmark, static, place, folder)
        if not set(names_in(program)) <= set(static):
            continue
        scope = Scope(static, {})
        called = scope.fill(program)
        if shutil.which(located(called, scope.fill(folder))) is None:
            hint = _hint(program, f"install it, or fix {where} of the benchmark")
            raise NotFound(f"benchmark {benchmark.name} runs '{called}', which is not a program here: {hint}")


def _holder(output: str, words: Mapping[str, Word]) -> str:
    """The setting whose folder holds an output, directly or through words; the build does not make that folder."""
    while names := names_in(output):
        if names[0] not in words or not output.startswith("{" + names[0] + "}"):
            break
        output = words[names[0]].text
    below = _BELOW.match(output)
    return "{" + below[1] + "}" if below and below[1].startswith("setting.") else ""


def _check_folder(benchmark: Benchmark, static: Mapping[str, Value], where: str, folder: str) -> None:
    path = Scope(static, {}).fill(folder)
    if path and not os.path.isdir(path):
        hint = _hint(folder, f"make it, or fix {where} of the benchmark")
        raise NotFound(f"benchmark {benchmark.name} needs the folder '{path}' ({where}), which is not here: {hint}")


def _hint(text: str, otherwise: str) -> str:
    settings = [name.partition(".")[2] for name in names_in(text) if name.startswith("setting.")]
    return f"give its path with `settings` {settings[0]}=…" if settings else otherwise
