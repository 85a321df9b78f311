"""The exported project in other builds: installed and found, twice inside another project, with every C++ that it promises."""

import os
import shutil
import subprocess

import pytest

from kerncast.answering.exporters.project import write_project
from kerncast.models.answer import C_STATUSES
from kerncast.native.lower import lower
from kerncast.native.tiers.build import TierOptions, tiers_named
from kerncast.testing.exported import CPP_STRICT
from kerncast.testing.models import synthetic_dataset, synthetic_rows
from kerncast.training.procedure import Recipe
from kerncast.training.train import train

# What a program says about one problem; NAME is the prefix.
ASK = """
static void ask_NAME() {
    auto selector = NAME::Selector::create();
    NAME::Problem problem;
    problem.M = problem.N = problem.K = 512;
    problem.dtype = NAME::Problem::Dtype::fp16;
    problem.layout = NAME::Problem::Layout::rcr;
    const auto answer = selector->select(problem);
    std::printf("%s\\n", answer ? "ok" : NAME::name(answer.status));
}
"""
CONSUMER = """cmake_minimum_required(VERSION 3.14)
project(consumer LANGUAGES C CXX)
set(CMAKE_CXX_STANDARD 17)
{find}
add_executable(consumer main.cpp)
target_link_libraries(consumer PRIVATE {targets})
"""


@pytest.fixture(scope="module")
def projects(tmp_path_factory):
    """The same model under two prefixes: all tiers, and the tree alone."""
    folder = tmp_path_factory.mktemp("projects")
    model = train(synthetic_dataset(folder / "d", synthetic_rows(problems=30)), folder / "m", Recipe("roofline", folds=2))
    for prefix, tiers in (("gemm", "tree,portfolio,full"), ("small", "tree")):
        write_project(lower(model, *tiers_named(model, tiers, TierOptions(samples=60))), folder / prefix, prefix)
    return folder


def run(*words, **more):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, **more)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def write_consumer(folder, find, *prefixes):
    folder.mkdir()
    targets = " ".join(f"kerncast::{prefix}" for prefix in prefixes)
    (folder / "CMakeLists.txt").write_text(CONSUMER.format(find=find, targets=targets))
    asked = "".join(f'#include "{prefix}.hpp"\n' for prefix in prefixes) + "#include <cstdio>\n"
    asked += "".join(ASK.replace("NAME", prefix) for prefix in prefixes)
    calls = " ".join(f"ask_{prefix}();" for prefix in prefixes)
    (folder / "main.cpp").write_text(f"{asked}int main() {{ {calls} }}\n")


@pytest.mark.needs("cmake", "g++")
def test_an_installed_project_is_found_wherever_it_was_moved(projects, tmp_path):
    """A shared library: self-test, install, move, find_package, pkg-config; only the functions of the header are exported."""
    build, moved = tmp_path / "build", tmp_path / "moved"
    run("cmake", "-S", projects / "gemm", "-B", build, "-DBUILD_SHARED_LIBS=ON", f"-DCMAKE_INSTALL_PREFIX={tmp_path / 'first'}")
    run("cmake", "--build", build)
    run("ctest", "--test-dir", build, "--output-on-failure")
    run("cmake", "--install", build)
    (tmp_path / "first").rename(moved)
    shutil.rmtree(build)
    write_consumer(tmp_path / "found", "find_package(kerncast_gemm 0.1 REQUIRED)", "gemm")
    run("cmake", "-S", tmp_path / "found", "-B", build, f"-DCMAKE_PREFIX_PATH={moved}")
    run("cmake", "--build", build)
    assert run(build / "consumer") == "ok\n"
    library = next(moved.rglob("libgemm.so"))
    listed = run("nm", "-D", "--defined-only", "--format=posix", library)
    assert {line.split()[0].split("_")[0] for line in listed.splitlines()} == {"gemm"}
    if shutil.which("pkg-config"):
        known = {**os.environ, "PKG_CONFIG_PATH": str(library.parent / "pkgconfig")}
        flags = run("pkg-config", "--cflags", "--libs", "gemm", env=known).split()
        run("g++", "-std=c++17", tmp_path / "found" / "main.cpp", *flags, f"-Wl,-rpath,{library.parent}", "-o", tmp_path / "by")
        assert run(tmp_path / "by") == "ok\n"


@pytest.mark.needs("cmake", "g++")
def test_two_exports_are_part_of_one_project(projects, tmp_path):
    """By add_subdirectory and FetchContent: no self-test is built and nothing is installed, unless the options say so."""
    find = (
        f'add_subdirectory("{projects / "gemm"}" gemm)\ninclude(FetchContent)\n'
        f'FetchContent_Declare(small SOURCE_DIR "{projects / "small"}")\nFetchContent_MakeAvailable(small)'
    )
    write_consumer(tmp_path / "both", find, "gemm", "small")
    build = tmp_path / "build"
    run("cmake", "-S", tmp_path / "both", "-B", build, "-DCMAKE_BUILD_TYPE=Debug")
    run("cmake", "--build", build)
    assert run(build / "consumer") == "ok\nok\n"
    assert not list(build.rglob("*selftest"))
    run("cmake", "--install", build, "--prefix", tmp_path / "nothing")
    assert not [path for path in (tmp_path / "nothing").rglob("*") if path.is_file()]
    run("cmake", "-S", tmp_path / "both", "-B", build, "-DKERNCAST_SMALL_SELFTEST=ON", "-DKERNCAST_SMALL_INSTALL=ON")
    run("cmake", "--build", build, "--target", "kerncast_small_selftest", "kerncast_small")
    assert list(build.rglob("small_selftest"))


@pytest.mark.parametrize("compiler", [pytest.param(name, marks=pytest.mark.needs(name)) for name in ("g++", "clang++")])
@pytest.mark.parametrize("standard", ["c++17", "c++20"])
@pytest.mark.parametrize("more", [[], ["-fno-exceptions", "-fno-rtti"]], ids=["exceptions", "none"])
def test_the_header_compiles_without_warnings(projects, compiler, standard, more, tmp_path):
    """Both headers in one file; the throwing constructor only with exceptions; every status of C has its enumerator."""
    text = '#include "gemm.hpp"\n#include "small.hpp"\n#include "gemm.hpp"\n'
    text += f"static_assert(std::is_default_constructible_v<gemm::Selector> == {str(not more).lower()});\n"
    text += "".join(f"static_assert(static_cast<int>(gemm::Status::{item}) == {item.number});\n" for item in C_STATUSES)
    source = tmp_path / "main.cpp"
    source.write_text(f"#include <type_traits>\n{text}")
    folders = [f"-I{projects / name}" for name in ("gemm", "small")]
    run(compiler, f"-std={standard}", *more, *CPP_STRICT, "-fsyntax-only", *folders, source)
