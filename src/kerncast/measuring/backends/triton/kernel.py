"""The Triton matmul of `gemm/triton`. Importing this module needs triton; TRITON_INTERPRET=1 then runs it on a CPU.

Operands are described by their strides, so one kernel serves every layout, with and without gaps between rows. The epilogue
works on the sums, before they are rounded.
"""

# mypy: ignore-errors
# The body is Triton's language, whose types are its compiler's, not Python's.

import triton
import triton.language as tl


@triton.jit
def matmul(
    a, b, c, bias, M, N, K,
    a_batch, a_m, a_k, b_batch, b_k, b_n, c_batch, c_m, c_n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr, EVEN_K: tl.constexpr, SUM: tl.constexpr, PRECISION: tl.constexpr,
    BIAS: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """One block of C. Blocks go GROUP_M rows of blocks at a time, so that neighbours in time share strips of B in L2."""
    # Sizes of matrices may pass 2^31 elements: offsets that strides multiply are 64 bits wide.
    pid, batch = tl.program_id(0), tl.program_id(1).to(tl.int64)
    blocks_m, blocks_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    group = pid // (GROUP_M * blocks_n)
    rows_of_group = min(blocks_m - group * GROUP_M, GROUP_M)
    within = pid % (GROUP_M * blocks_n)
    block_m = group * GROUP_M + within % rows_of_group
    block_n = within // rows_of_group

    m = (block_m * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    n = (block_n * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    k = tl.arange(0, BLOCK_K).to(tl.int64)
    # Rows and columns past the edge read others again: their sums are never stored, and loads need no mask for them.
    a_at = a + batch * a_batch + (m % M)[:, None] * a_m + k[None, :] * a_k
    b_at = b + batch * b_batch + k[:, None] * b_k + (n % N)[None, :] * b_n
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=SUM)
    for done in range(0, K, BLOCK_K):
        if EVEN_K:
            left, right = tl.load(a_at), tl.load(b_at)
        else:
            left = tl.load(a_at, mask=k[None, :] < K - done, other=0.0)
            right = tl.load(b_at, mask=k[:, None] < K - done, other=0.0)
        total = tl.dot(left, right, total, input_precision=PRECISION, out_dtype=SUM)
        a_at += BLOCK_K * a_k
        b_at += BLOCK_K * b_k
    if BIAS:
        total += tl.load(bias + n, mask=n < N, other=0).to(SUM)[None, :]
    if ACTIVATION == "relu":
        total = tl.maximum(total, 0)
    elif ACTIVATION == "silu":
        total = total / (1 + tl.exp(-total))
    elif ACTIVATION == "gelu":
        total = total * 0.5 * (1 + tl.erf(total * 0.7071067811865476))
    c_at = c + batch * c_batch + m[:, None] * c_m + n[None, :] * c_n
    tl.store(c_at, total.to(c.dtype.element_ty), mask=(m[:, None] < M) & (n[None, :] < N))
