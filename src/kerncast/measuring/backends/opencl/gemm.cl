/* C[M, N] = A[M, K] · B[K, N], C row-major; what a config chooses arrives as macros (see source.py).
 *
 * A work-group of MDIMC × NDIMC items computes a tile of MWG × NWG, an item MWI rows of NWI columns, the columns in
 * vectors of VWN. Sums are `acc` (float for halves); whatever is kept in local memory is `acc` too.
 * Loops are unrolled where it says so and nowhere else: how many steps of K are is the config's to choose (KWI).
 * a * b + c, not fma(): compilers contract the former, and on some CPUs the latter is a library call.
 */

#define MWI (MWG / MDIMC)
#define NWI (NWG / NDIMC)
#define NVI (NWI / VWN)
#define ITEMS (MDIMC * NDIMC)

/* Where in the tile an item's i-th row and j-th vector of columns are: side by side, or VWM rows (VWN columns) in turn. */
#if STRIDED_M
#define ROW(i) (((i) / VWM) * (MDIMC * VWM) + item_m * VWM + (i) % VWM)
#else
#define ROW(i) (item_m * MWI + (i))
#endif
#if STRIDED_N
#define COLUMN(j) ((j) * (NDIMC * VWN) + item_n * VWN)
#else
#define COLUMN(j) (item_n * NWI + (j) * VWN)
#endif

#if A_ROWS
#define A_AT(m, k) ((size_t)(m) * K + (k))
#else
#define A_AT(m, k) ((size_t)(k) * M + (m))
#endif
#if B_ROWS
#define B_AT(k, n) ((size_t)(k) * N + (n))
#else
#define B_AT(k, n) ((size_t)(n) * K + (k))
#endif

#if LOCAL_A
void fill_a(__local acc *tile, __global const real *a, int M, int K, int m0, int k0, int id) {
#if A_ROWS
    _Pragma("nounroll") for (int e = id; e < MWG * KWG; e += ITEMS) {
        const int m = e / KWG, k = e % KWG;
#if GUARD
        tile[k * MWG + m] = m0 + m < M && k0 + k < K ? LOAD(a + A_AT(m0 + m, k0 + k)) : 0;
#else
        tile[k * MWG + m] = LOAD(a + A_AT(m0 + m, k0 + k));
#endif
    }
#else
    _Pragma("nounroll") for (int e = id; e < MWG * KWG / VWM; e += ITEMS) {
        const int m = e % (MWG / VWM) * VWM, k = e / (MWG / VWM);
#if GUARD
        if (m0 + m + VWM > M || k0 + k >= K) {
            _Pragma("nounroll") for (int i = 0; i < VWM; i++)
                tile[k * MWG + m + i] = m0 + m + i < M && k0 + k < K ? LOAD(a + A_AT(m0 + m + i, k0 + k)) : 0;
            continue;
        }
#endif
        KEEP_M(LOAD_M(a + A_AT(m0 + m, k0 + k)), tile + k * MWG + m);
    }
#endif
}
#endif

#if LOCAL_B
void fill_b(__local acc *tile, __global const real *b, int K, int N, int k0, int n0, int id) {
#if B_ROWS
    _Pragma("nounroll") for (int e = id; e < KWG * NWG / VWN; e += ITEMS) {
        const int n = e % (NWG / VWN) * VWN, k = e / (NWG / VWN);
#if GUARD
        if (n0 + n + VWN > N || k0 + k >= K) {
            _Pragma("nounroll") for (int i = 0; i < VWN; i++)
                tile[k * NWG + n + i] = n0 + n + i < N && k0 + k < K ? LOAD(b + B_AT(k0 + k, n0 + n + i)) : 0;
            continue;
        }
#endif
        KEEP_N(LOAD_N(b + B_AT(k0 + k, n0 + n)), tile + k * NWG + n);
    }
#else
    _Pragma("nounroll") for (int e = id; e < KWG * NWG; e += ITEMS) {
        const int n = e / KWG, k = e % KWG;
#if GUARD
        tile[k * NWG + n] = n0 + n < N && k0 + k < K ? LOAD(b + B_AT(k0 + k, n0 + n)) : 0;
#else
        tile[k * NWG + n] = LOAD(b + B_AT(k0 + k, n0 + n));
#endif
    }
#endif
}
#endif

/* What is read past an edge only reaches sums that are not stored, or meets a zero of the other operand's tile:
 * any address inside the matrix will do. */
#if GUARD
#define INSIDE(x, end) min((int)(x), (end)-1)
#else
#define INSIDE(x, end) (x)
#endif

acc_m direct_a(__global const real *a, int M, int K, int m, int k) {
    k = INSIDE(k, K);
#if !A_ROWS
#if GUARD
    if (m + VWM <= M)
#endif
        return LOAD_M(a + A_AT(m, k));
#endif
#define A_ELEMENT(i) LOAD(a + A_AT(INSIDE(m + (i), M), k))
    return GATHER_M(A_ELEMENT);
}

acc_n direct_b(__global const real *b, int K, int N, int k, int n) {
    k = INSIDE(k, K);
#if B_ROWS
#if GUARD
    if (n + VWN <= N)
#endif
        return LOAD_N(b + B_AT(k, n));
#endif
#define B_ELEMENT(i) LOAD(b + B_AT(k, INSIDE(n + (i), N)))
    return GATHER_N(B_ELEMENT);
}

#if LOCAL_A
#define READ_A(m, k) TAKE_M(tile_a + (k) * MWG + (m))
#else
#define READ_A(m, k) direct_a(a, M, K, m0 + (m), k0 + (k))
#endif
#if LOCAL_B
#define READ_B(n, k) TAKE_N(tile_b + (k) * NWG + (n))
#else
#define READ_B(n, k) direct_b(b, K, N, k0 + (k), n0 + (n))
#endif

/* One step of K: `k` within the tile, `k0 + k` in the matrices. */
#define LEFT(value, e) left[i + (e)] = (value)
#define STEP(k)                                                                                           \
    do {                                                                                                  \
        acc left[MWI];                                                                                    \
        acc_n right[NVI];                                                                                 \
        _Pragma("unroll") for (int i = 0; i < MWI; i += VWM) {                                            \
            const acc_m rows = READ_A(ROW(i), k);                                                         \
            SPREAD_M(LEFT, rows);                                                                         \
        }                                                                                                 \
        _Pragma("unroll") for (int j = 0; j < NVI; j++) right[j] = READ_B(COLUMN(j), k);                  \
        _Pragma("unroll") for (int i = 0; i < MWI; i++)                                                   \
            _Pragma("unroll") for (int j = 0; j < NVI; j++) sum[i][j] = left[i] * right[j] + sum[i][j];   \
    } while (0)

__kernel __attribute__((reqd_work_group_size(NDIMC, MDIMC, 1))) void gemm(
    __global const real *restrict a, __global const real *restrict b, __global real *restrict c, int M, int N, int K) {
    const int item_n = get_local_id(0), item_m = get_local_id(1);
    const int n0 = get_group_id(0) * NWG, m0 = get_group_id(1) * MWG;
    acc_n sum[MWI][NVI];
    _Pragma("unroll") for (int i = 0; i < MWI; i++)
        _Pragma("unroll") for (int j = 0; j < NVI; j++) sum[i][j] = 0;

#if LOCAL_A || LOCAL_B
    const int id = item_m * NDIMC + item_n;
#if LOCAL_A
    __local acc tile_a[KWG * MWG];
#endif
#if LOCAL_B
    __local acc tile_b[KWG * NWG];
#endif
    _Pragma("nounroll") for (int k0 = 0; k0 < K; k0 += KWG) {
#if LOCAL_A
        fill_a(tile_a, a, M, K, m0, k0, id);
#endif
#if LOCAL_B
        fill_b(tile_b, b, K, N, k0, n0, id);
#endif
        barrier(CLK_LOCAL_MEM_FENCE);
        _Pragma("nounroll") for (int k = 0; k < KWG; k += KWI) {
            _Pragma("unroll") for (int u = 0; u < KWI; u++) STEP(k + u);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
#else
    int k0 = 0;
    _Pragma("nounroll") for (; k0 + KWI <= K; k0 += KWI) {
        _Pragma("unroll") for (int u = 0; u < KWI; u++) STEP(u);
    }
#if GUARD
    _Pragma("nounroll") for (; k0 < K; k0++)
        STEP(0);
#endif
#endif

    _Pragma("unroll") for (int i = 0; i < MWI; i++) {
        const int m = m0 + ROW(i);
        _Pragma("unroll") for (int j = 0; j < NVI; j++) {
            const int n = n0 + COLUMN(j);
            __global real *to = c + (size_t)m * N + n;
#if GUARD
            if (m >= M || n >= N)
                continue;
            if (n + VWN > N) {
#define PUT(value, e) if (n + (e) < N) STORE(value, to + (e))
                SPREAD_N(PUT, sum[i][j]);
                continue;
            }
#endif
            STORE_N(sum[i][j], to);
        }
    }
}
