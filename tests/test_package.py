"""The package as it is installed: imports, public names, the wheel, the third-party example."""

import itertools
import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import kerncast
from kerncast.library import devices
from kerncast.library.declared.family_file import family_named
from kerncast.library.registry import OPS
from kerncast.measuring.backends.cpu.build import find_compiler

ROOT = Path(__file__).resolve().parents[1]
HEAVY = ("lightgbm", "numpy", "plotly", "polars", "pyopencl", "ray", "rich", "scipy", "sklearn", "torch")


def test_importing_kerncast_loads_nothing_heavy():
    """The first import stays cheap; what is heavy is loaded by what uses it."""
    probe = f"import sys, kerncast; print([name for name in {HEAVY} if name in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_the_public_names_are_few_and_all_there():
    """A public `__init__` one can read in a minute."""
    names = {*kerncast.__all__} - {*kerncast.ERRORS, "__version__"}
    assert len(names) <= 25
    for name in kerncast.__all__:
        assert getattr(kerncast, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Dataest'"):
        _ = kerncast.Dataest


def test_the_version_is_one():
    """The package, its metadata and the changelog agree."""
    assert metadata.version("kerncast") == kerncast.__version__
    assert f"## {kerncast.__version__}" in (ROOT / "CHANGELOG.md").read_text()


@pytest.fixture(scope="module")
def wheel_environment(tmp_path_factory):
    """An environment in which kerncast comes from a freshly built wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT]
    subprocess.run(build, check=True)
    (wheel,) = folder.glob("kerncast-*.whl")
    site = folder / "site"
    subprocess.run([*pip, "install", "--no-deps", "--target", site, wheel], check=True)
    return {**os.environ, "PYTHONPATH": str(site), "PYTHONSAFEPATH": "1"}, site


def test_the_wheel_is_complete_and_works_installed(wheel_environment, tmp_path):
    """Profiles, type marker and verbs are in it; import and inspect run from it."""
    environment, site = wheel_environment
    assert (site / "kerncast/py.typed").is_file()

    def python(code, *args):
        command = [sys.executable, "-c", code, *map(str, args)]
        return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    def run(*args):
        return python("import kerncast.app.cli as c; c.main()", *args)

    assert python("import kerncast; print(kerncast.__file__)").startswith(str(site))
    assert "gfx950" in run("list", "device")
    (tmp_path / "t.csv").write_text("m_size,k_size,n_size,num_cores,duration\n640,32,32,10,1849.0\n")
    run("import", "ttnn-csv", "t.csv", "--device", "wormhole_b0", "--out", "t")
    assert "matmul_sharded/single" in run("inspect", "t")


def test_the_third_party_example_is_found_by_its_entry_points(run, tmp_path):
    """An op and a family from another package, two classes and nothing else, go all the way from a table to compiled C."""
    family = family_named("softmax/numpy")
    assert family.op is OPS.get("softmax")
    assert family.config.count(family.bindings({"rows": 64})) == 7 * 2
    features = family.features_on(devices.get("cpu_generic"))
    assert features.left_out == {"chunk_in_l2": ("hw.l2_cache_kb",)}
    table = tmp_path / "times.csv"
    lines = ["rows,columns,numpy_dtype,chunk,in_place,pass,latency_ms"]
    for rows, columns, chunk, in_place in itertools.product((16, 64, 256), (32, 128, 512, 2048), (1, 4, 16), (True, False)):
        calls, touched = rows / chunk, chunk * columns * (3 if in_place else 5)
        lines.append(f"{rows},{columns},float32,{chunk},{in_place},0,{(calls * (5 + touched / 500 + touched**2 / 1e7)) / 1e3}")
    table.write_text("\n".join(lines) + "\n")
    mapping = ROOT / "examples/softmax/times.toml"
    data, model = tmp_path / "d", tmp_path / "m"
    assert run("import", "csv", table, "--mapping", mapping, "--device", "local", "--out", data)[0] == 0
    rows = kerncast.Dataset.open(data).read()
    assert rows.height == 72
    assert rows["time_ns"].min() > 1_000
    assert run("train", data, "--out", model, "--folds", 2, "--trees", 40, "--bags", 1)[0] == 0
    code, answer, _ = run("select", model, "rows=64", "columns=512", "dtype=fp32", "--json")
    assert code == 0
    chosen = json.loads(answer)["config"]
    assert chosen == kerncast.Selector(model).select({"rows": 64, "columns": 512, "dtype": "fp32"}).config.as_dict()
    if find_compiler() is not None:
        assert run("export", model, "--to", "c", "--out", tmp_path / "c")[0] == 0
        build = [find_compiler().path, "-std=c99", "-ffp-contract=off", "kerncast.c", "selftest.c", "-lm", "-o", "selftest"]
        subprocess.run(build, cwd=tmp_path / "c", check=True, capture_output=True)
        assert "0 differences" in subprocess.run([tmp_path / "c/selftest"], capture_output=True, text=True, check=True).stdout
