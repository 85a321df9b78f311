"""Op and Family, the two things a third party writes; Problem and Config, the values they validate.

An op file declares what is computed, a family file the interchangeable kernels for it:

    class Gemm(Op):
        name = "gemm"
        parameters = {"M": Int(1, 2**31), ...}
        split_group = ("M", "N", "K")
        def work(self, p): return Work(flops=2 * p.M * p.N * p.K, bytes=...)
        def features(self, p, hw): return {"log2_M": log2(p.M), ...}

    gemm = Gemm()

Methods are traced once, with symbols for arguments (see `kerncast.core.expr`). A module-level instance in a
module of `kerncast.library.ops`, or an entry point in the group `kerncast.ops`, is all the registration needed.
"""

from __future__ import annotations

from kerncast.core.op.declaration import Family, FeatureSet, Op, Suite, Work
from kerncast.core.op.values import Config, Problem, hash_key, key, key_digests, key_text

__all__ = ["Config", "Family", "FeatureSet", "Op", "Problem", "Suite", "Work", "hash_key", "key", "key_digests", "key_text"]
