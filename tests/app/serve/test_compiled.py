"""Models that ship are compiled while Python answers, and nobody can tell from the answers."""

import threading

import pytest

from kerncast.app.serve.sources import Sources
from kerncast.library import devices
from kerncast.models import trust
from kerncast.models.model import Model
from kerncast.native import build
from kerncast.native import build as loading

DEADLINE = 120


@pytest.fixture(scope="module")
def slim(exp_model, tmp_path_factory):
    return exp_model.slimmed(tmp_path_factory.mktemp("slim") / "model")


def problems(model, sizes):
    return [model.problem({"func": "exp", "dim2": size, "dim3": 640, "dtype": "bf16", "buffer": "dram"}) for size in sizes]


def test_compiled_code_takes_over_with_the_same_answers(slim, monkeypatch, tmp_path_factory):
    """To the last bit, and refusals in the words of Python."""
    monkeypatch.setenv("KERNCAST_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    ready = threading.Event()
    sources = Sources(None)
    sources.builder.changed = lambda path: ready.set()
    ask = sources.ask
    asked = problems(slim, (32, 320, 2016, 64_000))
    wanted = slim.predict(asked, device="wormhole_b0")
    assert ask(slim, asked, "wormhole_b0") == wanted
    assert ready.wait(DEADLINE)
    monkeypatch.setattr(Model, "predict", lambda self, given, device, own=Model.predict: own(self, given[-1:], device=device))
    found = ask(slim, asked, "wormhole_b0")
    assert [item.status for item in found] == ["ok", "ok", "ok", "out_of_range"]
    for own, other in zip(found, wanted, strict=True):
        assert (own.time_ns, own.lower_ns, own.upper_ns, own.reason) == (
            other.time_ns, other.lower_ns, other.upper_ns, other.reason,
        )  # fmt: skip


@pytest.mark.parametrize("why", ["no compiler", "not trusted", "a profile"])
def test_python_goes_on_answering_where_compiled_code_cannot(slim, why, monkeypatch, tmp_path):
    """Without a compiler, without trust, on a device that is no name of a measured one."""
    monkeypatch.setenv("KERNCAST_CACHE", str(tmp_path))
    if why == "no compiler":
        monkeypatch.setattr(build, "find_compiler", lambda: None)
    elif why == "not trusted":
        monkeypatch.setattr(trust, "refusal", lambda model: "nobody knows where it is from")
        monkeypatch.setattr(loading, "compiled", pytest.fail)
    device = devices.get("wormhole_b0") if why == "a profile" else "wormhole_b0"
    sources, asked = Sources(None), problems(slim, (32, 320))
    builder = sources.builder
    first = sources.ask(slim, asked, device)
    assert (builder._thread is not None) == (why == "no compiler")
    builder.wait(slim.path)
    assert sources.ask(slim, asked, device) == first == slim.predict(asked, device=device)
