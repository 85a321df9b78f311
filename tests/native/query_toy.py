"""A toy op, the C that is generated for it with a stand-in engine, and a driver that asks it."""

import json
import struct
import subprocess
from pathlib import Path

from kerncast.core.op import Op
from kerncast.core.parameters import Bool, Categorical, Choice, Int, JsonField
from kerncast.core.space import Space
from kerncast.models.answer import C_STATUSES
from kerncast.native.header import enumerations
from kerncast.native.query import Identity, query_source
from kerncast.testing.exported import LEVEL

HERE = Path(__file__).parent
STRICT = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-Wshadow", "-Wconversion", "-Wno-sign-conversion"]
SANITIZED = [LEVEL, "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
STATUSES = [str(status) for status in C_STATUSES]
ROOM = 1 << 16

# The config is declared like the problem: the stand-in engine answers with what it was asked.
TOY = {
    "M": Int(1, 2**63 - 1),
    "case": Int(0, 9, default=0),
    "dtype": Categorical({"fp8": 4, "fp16": 2, 'say "ä"\\': 7, "??=": 8, "😀": 0}),
    "größe": Int(-(2**63) + 1, 2**63 - 1),
    "tf32": Bool(),
    "mask": Choice(1, 2, 64, when=lambda p: p.dtype == "fp8"),
}
TOY_PROBLEM, TOY_CONFIG = Space("toy", "p", TOY), Space("toy/own", "c", TOY)


def header(folder):
    """Write the stand-in header of an artefact, with the statuses and tiers that artefacts have; return its text."""
    text = (HERE / "query_artefact.h.in").read_text()
    text = text.replace("@ENUMERATIONS@", enumerations("kerncast", "kerncast_config config;"))
    (folder / "query_artefact.h").write_text(text)
    return text


def build(folder, compiler, flags, *sources, op=None):
    """An executable of the stand-in artefact with the generated entry point; of an op, with the requests it declares."""
    problem, config = (TOY_PROBLEM, TOY_CONFIG) if op is None else (op.problem, Space("toy/own", "c", op.parameters))
    counts = [f"-DPROBLEM_COUNT={len(problem.parameters)}", f"-DCONFIG_COUNT={len(config.parameters)}"]
    generated, program = folder / "query.c", folder / f"{Path(sources[0]).stem}-{compiler}"
    generated.write_text('#include "query_artefact.h"\n' + query_source("kerncast", problem, config, op and identity(op)))
    header(folder)
    files = [generated, HERE / "query_artefact.c", *(HERE / source for source in sources)]
    subprocess.run([compiler, *flags, *counts, f"-I{folder}", *files, "-o", program, "-lm"], check=True)
    return program


class Toy(Op):
    """A tensor of three dimensions, by paths, foreign names and numbers."""

    name = "toy"
    parameters = {**TOY, "depth": Int(0, 99, default=1), "rows": Int(0, 99, default=1),
                  "out": Categorical({"fp8": 4, "fp16": 2, "in": 9}, default="in"), "extra": Bool(default=False)}  # fmt: skip
    split_group = ("M",)
    aliases = {"small": {"case": 7, "tf32": True}}
    json = (
        JsonField(("tensor.shape", "spec.logical_shape"), ("depth", "rows", "M")),
        JsonField(("tensor.dtype", "spec.layout.dtype"), ("dtype",), (("float16", "fp16"), ("ärger", "fp8"), (3, "fp8"))),
        JsonField(("out.dtype",), ("out",), (("float16", "fp16"),), same=("dtype", "in")),
        JsonField(("extra",), ("extra",), present=True),
        JsonField(("extra.rows",), ("rows",)),
        JsonField(("spec.layout.page", "scale")),
    )


TRAINED_ON = '{"commit":"abcdef0123456","compiler":"gcc 12 \u00e4","threads":2}'


def identity(op):
    return Identity(op, "toy/own", ("card", "c1"), 'toy "m"', "abcdef0123456", (TRAINED_ON,))


class Artefact:
    """The compiled driver: one request at a time, as bytes."""

    def __init__(self, program, folder, arguments=(), environment=None):
        self.errors = folder / "stderr"
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment
            )

    def raw(self, text, room=ROOM):
        """Status, bytes needed, and what was written."""
        self.process.stdin.write(struct.pack("=II", len(text), room) + text)
        self.process.stdin.flush()
        header = self.process.stdout.read(12)
        assert len(header) == 12, f"the driver died of {text!r}:\n{self.errors.read_text(errors='replace')}"
        status, needed, follows = struct.unpack("=III", header)
        return STATUSES[status], needed, self.process.stdout.read(follows)

    def ask(self, text):
        """The reply, parsed; its status is also what the call returned, and its length what was said to be needed."""
        status, needed, out = self.raw(text if isinstance(text, bytes) else text.encode())
        assert len(out) == needed
        assert out[-1:] == b"\0"
        reply = json.loads(out[:-1].decode())
        assert status == (reply["status"] if isinstance(reply, dict) else "ok")
        return reply

    def close(self):
        """Ends the driver, which must have nothing to complain about (leaks neither)."""
        self.process.stdin.close()
        code = self.process.wait(60)
        self.process.stdout.close()
        assert code == 0, self.errors.read_text(errors="replace")
