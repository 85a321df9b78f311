"""A model and its inputs from a Python file of the user. Reading the file runs it."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from pathlib import Path
from typing import Any

from kerncast.errors import BadFile, InvalidValue, NotFound

FUNCTION = "example"


def example_of(spec: str) -> tuple[Any, Any]:
    """`(model, inputs)` from `FILE.py` or `FILE.py:function`, which runs the file and calls the function."""
    text, separator, name = spec.rpartition(":")
    path, function = (Path(text), name) if separator and not name.endswith(".py") else (Path(spec), FUNCTION)
    if path.suffix != ".py" or not function.isidentifier():
        raise InvalidValue(f"a model is given as FILE.py or FILE.py:function, got '{spec}'")
    if not path.is_file():
        raise BadFile(f"cannot read {path} (no such file): check the path")
    module = _module(path)
    if not callable(getattr(module, function, None)):
        names = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        if function == FUNCTION:
            raise InvalidValue(
                f"{path} has no function {FUNCTION}() that returns (model, inputs): add it, or name one after a ':'"
            )
        raise NotFound.named(f"function in {path}", function, names)
    try:
        given = getattr(module, function)()
    except Exception as error:
        raise _failed(path, f"{function}()", error) from error
    if not isinstance(given, tuple) or len(given) != 2:
        raise InvalidValue(f"{function}() in {path} must return (model, inputs), it returned {type(given).__name__}")
    return given


def _module(path: Path) -> Any:
    """The file as a module; it may import its neighbours, as it could with `python FILE.py`."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise _failed(path, "it", error) from error
    finally:
        if folder in sys.path:
            sys.path.remove(folder)
    return module


def _failed(path: Path, what: str, error: Exception) -> BadFile:
    own = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path]
    line = f", line {own[-1]}" if own else ""
    said = " ".join(str(error).split())[:200]
    return BadFile(f"{path}{line}: {what} failed with {type(error).__name__}: {said}")
