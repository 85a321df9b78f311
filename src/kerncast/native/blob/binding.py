"""A blob called from Python, through the compiled runtime and ctypes."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

from kerncast.core.io.checksums import is_intact
from kerncast.errors import BadFile
from kerncast.measuring.backends.cpu.build import find_compiler, instruction_set
from kerncast.native.binding import Binding
from kerncast.native.blob.runtime import runtime_header, runtime_source
from kerncast.native.blob.sections import MOST
from kerncast.native.build import FLAGS, build, folder_for
from kerncast.native.header import MESSAGE_BYTES

LONGEST_MESSAGE = 4 * MESSAGE_BYTES


def compiled_runtime() -> Path | None:
    """The runtime as a shared object, compiled once; None if there is no compiler."""
    compiler = find_compiler()
    if compiler is None:
        return None
    made = folder_for("runtime", compiler.path, compiler.version, *FLAGS, instruction_set()) / "artefact.so"
    if not is_intact(made):
        build(compiler, FLAGS, runtime_source(), runtime_header(), made, "kerncast_runtime")
    return made


class BlobBinding(Binding):
    """One loaded model with one context; threads take turns. The runtime checks the bytes before it uses them."""

    def __init__(self, library: Path, data: bytes, what: str, prefix: str = "kerncast") -> None:
        self._data, self._what = data, what
        self._model = ctypes.c_void_p()
        self._open(library, prefix)
        said = ctypes.create_string_buffer(LONGEST_MESSAGE)
        if self._function("load")(data, len(data), ctypes.byref(self._model), said, len(said)):
            raise BadFile(f"{what}: {said.value.decode('utf-8', 'replace')}")
        context = ctypes.c_void_p()
        if self._function("create")(self._model, ctypes.byref(context)):
            raise BadFile(f"{what}: there is not enough memory to answer with this model")
        self._begin(context, self._function("parameters")(self._model, 0), MOST["parameters"])
        self.candidates = int(self._function("candidates")(context))

    def _shapes(self) -> dict[str, tuple[list[Any], Any]]:
        pointer, number, size = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
        shapes = {name: shape for name, shape in super()._shapes().items() if name not in ("create_checked", "query_json")}
        return shapes | {
            "load": ([ctypes.c_char_p, size, pointer, pointer, size], number),
            "unload": ([pointer], None),
            "create": ([pointer, pointer], number),
            "parameters": ([pointer, number], ctypes.c_int32),
            "self_test": ([pointer, pointer, pointer, size], number),
            "describe": ([pointer], ctypes.c_char_p),
            "predict": ([pointer, pointer, pointer, pointer], number),
            "features": ([pointer, pointer, pointer, pointer, size], number),
            "candidates": ([pointer], ctypes.c_int32),
        }

    def _stateless(self, name: str, *arguments: Any) -> int:
        return int(self._function(name)(self._context, *arguments))

    def self_test(self) -> int:
        """How many golden vectors it has; a `BadFile` says which of them is answered differently here."""
        checked, said = ctypes.c_int32(), ctypes.create_string_buffer(LONGEST_MESSAGE)
        if self._function("self_test")(self._model, ctypes.byref(checked), said, len(said)):
            raise BadFile(f"{self._what}: {said.value.decode('utf-8', 'replace')}")
        return checked.value

    def describe(self) -> dict[str, Any]:
        """Family, device, kind and checksum of the model."""
        return dict(json.loads(self._function("describe")(self._model)))

    def close(self) -> None:
        """Free the context and the model."""
        super().close()
        if self._model:
            self._function("unload")(self._model)
            self._model = ctypes.c_void_p()
