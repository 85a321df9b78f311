"""What the quickstart ends with, judged: `python benchmarks/quickstart.py [--full] [--out DIR]`.

The five-minute form by default; `--full` measures 300 shapes in fp32 and bf16 and takes about an hour. Kernels are built,
measured, learned from and raced against numpy's BLAS on this machine; the model is judged on shapes that no fold was
trained on. The time counts only where the folder did not exist before: the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# At least so much of the best measured speed, in the mean and in the worst tenth; and no more seconds than these.
BARS = {False: (0.90, None, 300.0), True: (0.96, 0.88, None)}


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--full", action="store_true", help="300 shapes, fp32 and bf16")
    options.add_argument("--out", type=Path, help="where everything is kept; else it is thrown away")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        out = given.out or Path(scratch) / "quickstart"
        fresh, start = not out.exists(), time.perf_counter()
        command = [sys.executable, "-m", "kerncast.cli", "quickstart", "--json", "--out", str(out)]
        answer = subprocess.run([*command, *(["--full"] if given.full else [])], stdout=subprocess.PIPE, text=True, check=False)
        if answer.returncode:
            return answer.returncode
        spent = time.perf_counter() - start
    found = json.loads(answer.stdout)
    mean, p10, seconds = BARS[given.full]
    verdicts = [
        (f"mean of the best measured speed {found['model_share_mean']:.2%} (bar {mean:.0%})", found["model_share_mean"] >= mean)
    ]
    if p10 is not None:
        verdicts.append((f"P10 {found['model_share_p10']:.2%} (bar {p10:.0%})", found["model_share_p10"] >= p10))
    verdicts.append((f"{found['model_against_blas']:.2f} x numpy's BLAS (bar 1)", found["model_against_blas"] > 1.0))
    if seconds is not None and fresh:
        verdicts.append((f"{spent:.0f} s (bar {seconds:.0f})", spent <= seconds))
    print(
        f"{found['problems']} shapes, {found['rows']:,} measurements; worst choice {found['model_share_min']:.2%}, P10 "
        f"{found['model_share_p10']:.2%}; noise ceiling {found['noise_ceiling']:.2%}; best fixed kernel "
        f"{found['fixed_share_mean']:.2%}; best measured kernel {found['best_against_blas']:.2f} x numpy's BLAS"
    )
    for text, reached in verdicts:
        print(f"  {'reached' if reached else 'MISSED '} {text}")
    return 0 if all(reached for _, reached in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
