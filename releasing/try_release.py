"""Use a built wheel and sdist as someone who has nothing else: install each into an empty environment and ask it something.

python releasing/try_release.py dist             # everything; the quickstart measures for about five minutes
python releasing/try_release.py dist --quick     # without the quickstart
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

LARGEST_WHEEL_BYTES = 30_000_000
CONFIG = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "intermediate_size": 14336, "vocab_size": 128256, "torch_dtype": "bfloat16",
}  # fmt: skip
GEMM = ("gemm", "M=4096", "N=4096", "K=4096", "dtype=bf16", "layout=rcr", "--device", "h100")


class Environment:
    """An empty environment with one package in it, and an empty folder to work in."""

    def __init__(self, folder: Path, package: Path, extra: str = "") -> None:
        self.folder = folder / "work"
        self.folder.mkdir(parents=True)
        venv.create(folder / "venv", with_pip=True)
        self.bin = folder / "venv" / "bin"
        # Nothing of the tree that built it, of the user's own models or of another environment may help.
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "KERNCAST_", "VIRTUAL_ENV"))
        }
        self.variables = {**kept, "PATH": f"{self.bin}:{kept['PATH']}", "KERNCAST_STORE": str(folder / "store")}
        pip = (self.bin / "python", "-m", "pip", "--quiet", "--disable-pip-version-check")
        self.run(*pip, "install", f"{package.resolve()}{extra}")

    def run(self, *command: str | Path) -> str:
        """What a command prints; it must succeed."""
        print("$", " ".join(str(word) for word in command), flush=True)
        done = subprocess.run(
            [str(word) for word in command], cwd=self.folder, env=self.variables, stdout=subprocess.PIPE, text=True, check=False
        )
        if done.returncode:
            sys.exit(f"{done.stdout}\nfailed with code {done.returncode}: {' '.join(map(str, command))}")
        return done.stdout

    def kerncast(self, *arguments: str) -> str:
        """What a verb prints."""
        return self.run(self.bin / "kerncast", *arguments)


def ask(environment: Environment) -> None:
    """Answers that need nothing but the package."""
    diagnosis = json.loads(environment.kerncast("doctor", "--json"))
    assert diagnosis["healthy"], diagnosis
    home = environment.run(environment.bin / "python", "-c", "import kerncast; print(kerncast.__file__)").strip()
    assert Path(home).is_relative_to(environment.bin.parent), f"kerncast is not the installed one: {home}"
    answer = json.loads(environment.kerncast("predict", *GEMM, "--json"))
    print(f"  gemm on h100: {answer['time_ns'] / 1e3:.1f} us by {answer['basis']}")
    assert 1e5 < answer["time_ns"] < 1e6, answer
    (environment.folder / "config.json").write_text(json.dumps(CONFIG))
    whole = json.loads(environment.kerncast("estimate", "config.json", "--device", "h100", "--context", "1024", "--json"))
    print(f"  a step of an 8B model on h100: {whole['step_ns'] / 1e6:.2f} ms, {whole['basis_share']}")
    assert 1e6 < whole["step_ns"] < 1e8, whole["step_ns"]
    shipped = Path(home).parent / "library" / "shipped"
    if shipped.is_dir():
        print(environment.kerncast("inspect", str(shipped), "--verify").strip())


def measure(environment: Environment) -> None:
    """The quickstart, and the self-tests of what it made."""
    environment.kerncast("regenerate", "quickstart", "--out", "quickstart")
    environment.kerncast("inspect", "quickstart", "--verify")
    environment.kerncast("export", "quickstart/model", "--to", "c", "--out", "exported")
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        sys.exit("there is no C compiler for the self-test of the exported model: install gcc")
    exported = environment.folder / "exported"
    sources = [exported / "kerncast.c", exported / "selftest.c"]
    environment.run(compiler, "-std=c99", "-O1", "-ffp-contract=off", *sources, "-lm", "-o", exported / "selftest")
    said = environment.run(exported / "selftest")
    assert "0 differences" in said, said
    print(f"  {said.strip().splitlines()[-1]}")


def main() -> None:
    """Try the wheel, then the sdist."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the wheel and the sdist are")
    parser.add_argument("--quick", action="store_true", help="without the quickstart")
    given = parser.parse_args()
    (wheel,) = given.folder.glob("kerncast-*.whl")
    (sdist,) = given.folder.glob("kerncast-*.tar.gz")
    size = wheel.stat().st_size
    print(f"{wheel.name}: {size / 1e6:.2f} MB, {sdist.name}: {sdist.stat().st_size / 1e6:.2f} MB")
    assert size <= LARGEST_WHEEL_BYTES, f"the wheel has {size:,} bytes, and at most {LARGEST_WHEEL_BYTES:,} are allowed"
    for package in (wheel, sdist):
        with tempfile.TemporaryDirectory(prefix="kerncast-release-") as folder:
            environment = Environment(Path(folder) / "plain", package)
            version = environment.kerncast("--version").strip().split()[-1]
            assert f"-{version}-" in wheel.name, f"{wheel.name} says that it is version {version}"
            assert sdist.name == f"kerncast-{version}.tar.gz", f"{sdist.name} says that it is version {version}"
            ask(environment)
            if package is wheel and not given.quick:
                measure(Environment(Path(folder) / "train", package, "[train]"))
    print("the release works in an empty environment")


if __name__ == "__main__":
    main()
