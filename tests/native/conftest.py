"""The toy op in C, compiled once by every compiler, under sanitizers."""

import pytest
from query_toy import SANITIZED, STRICT, Artefact, Toy, build

from kerncast.testing.exported import EACH_COMPILER

COMPILED = {"scope": "session", "params": EACH_COMPILER}


@pytest.fixture(**COMPILED)
def artefact(request, tmp_path_factory):
    """Asked by the names of parameters alone."""
    folder = tmp_path_factory.mktemp(request.param)
    started = Artefact(build(folder, request.param, [*STRICT, *SANITIZED], "query_driver.c"), folder)
    yield started
    started.close()


@pytest.fixture(**COMPILED)
def toy(request, tmp_path_factory):
    """Asked by what the op declares, too."""
    folder = tmp_path_factory.mktemp(f"toy-{request.param}")
    started = Artefact(build(folder, request.param, [*STRICT, *SANITIZED], "query_driver.c", op=Toy()), folder)
    yield started
    started.close()
