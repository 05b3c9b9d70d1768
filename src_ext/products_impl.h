/* Products of blocks with one column or many; a part of blocks_impl.h, which includes it once per vector width. */

/* Calls f(size, ...) with `size`, 1 to 8, as a constant. */
#define TILES(size, f, ...) \
    switch (size) { \
    case 1: f(1, __VA_ARGS__); break; \
    case 2: f(2, __VA_ARGS__); break; \
    case 3: f(3, __VA_ARGS__); break; \
    case 4: f(4, __VA_ARGS__); break; \
    case 5: f(5, __VA_ARGS__); break; \
    case 6: f(6, __VA_ARGS__); break; \
    case 7: f(7, __VA_ARGS__); break; \
    default: f(8, __VA_ARGS__); \
    }

/* The same for 1 to 13. */
#define LONG_TILES(size, f, ...) \
    switch (size) { \
    case 9: f(9, __VA_ARGS__); break; \
    case 10: f(10, __VA_ARGS__); break; \
    case 11: f(11, __VA_ARGS__); break; \
    case 12: f(12, __VA_ARGS__); break; \
    case 13: f(13, __VA_ARGS__); break; \
    default: TILES(size, f, __VA_ARGS__) \
    }

/* The last p % LANES entries of a row are read as the last LANES entries, in bounds, and the lanes
 * that were used before are multiplied by zero: `keep` is 1 on the new lanes. */
ADFL_TARGET ADFL_INLINE VEC ADFL_NAME(new_lanes)(ptrdiff_t done, ptrdiff_t p)
{
    static const double steps[16] = {[8] = 1, 1, 1, 1, 1, 1, 1, 1};
    return LOAD(steps + 8 - LANES + (p - done));
}

/* One column: R dot products of rows with T. R is a constant at every call, so the loops unroll and the
 * sums live in registers. `last` is the last vector of T without the lanes that stand in the one before. */
ADFL_TARGET ADFL_INLINE void ADFL_NAME(dot_tile)(
    const int R, const double *X, ptrdiff_t ldx, ptrdiff_t p, const double *T, const VEC last, double *E)
{
    VEC acc[8];
    UNROLL for (int r = 0; r < R; r++) acc[r] = LOAD(X + r * ldx + p - LANES) * last;
    for (ptrdiff_t k = 0; k < p - LANES; k += LANES) {
        const VEC t = LOAD(T + k);
        UNROLL for (int r = 0; r < R; r++) acc[r] += LOAD(X + r * ldx + k) * t;
    }
    UNROLL for (int r = 0; r + 4 <= R; r += 4)
        ADFL_NAME(lanes_sum4)(acc[r], acc[r + 1], acc[r + 2], acc[r + 3], E + r);
    UNROLL for (int r = R / 4 * 4; r < R; r++) E[r] = ADFL_NAME(lanes_sum)(acc[r]);
}

/* The same where all K vectors of T stay in registers, K up to 13: row after row, as memory likes it.
 * The last vector of a row stands at `end`. */
ADFL_TARGET ADFL_INLINE VEC ADFL_NAME(row_dot)(const int K, const double *x, ptrdiff_t end, const VEC *t)
{
    VEC sums[2] = {LOAD(x + end) * t[K - 1]};
    UNROLL for (int k = 0; k < K - 1; k++) sums[k % 2] += LOAD(x + k * LANES) * t[k];
    return sums[0] + sums[1];
}

ADFL_TARGET ADFL_INLINE void ADFL_NAME(short_dots)(
    const int K, const double *X, ptrdiff_t ldx, ptrdiff_t rows, ptrdiff_t end, const double *T, const VEC last,
    double *E)
{
    VEC t[13];
    UNROLL for (int k = 0; k < K; k++) t[k] = k < K - 1 ? LOAD(T + k * LANES) : last;
    ptrdiff_t i = 0;
#define DOT(r) ADFL_NAME(row_dot)(K, X + (r) * ldx, end, t)
    for (; i + 4 <= rows; i += 4) ADFL_NAME(lanes_sum4)(DOT(i), DOT(i + 1), DOT(i + 2), DOT(i + 3), E + i);
    for (; i < rows; i++) E[i] = ADFL_NAME(lanes_sum)(DOT(i));
#undef DOT
}

ADFL_TARGET static void ADFL_NAME(dots)(
    const double *X, ptrdiff_t ldx, ptrdiff_t rows, ptrdiff_t p, const double *T, double *E)
{
    ptrdiff_t i = 0;
    if (p < LANES) {
        for (; i < rows; i++) {
            E[i] = 0.0;
            for (ptrdiff_t k = 0; k < p; k++) E[i] += X[i * ldx + k] * T[k];
        }
        return;
    }
    const VEC last = LOAD(T + p - LANES) * ADFL_NAME(new_lanes)((p - 1) / LANES * LANES, p);
    if (p <= 13 * LANES) {
        LONG_TILES((p + LANES - 1) / LANES, ADFL_NAME(short_dots), X, ldx, rows, p - LANES, T, last, E)
        return;
    }
    for (; i + 8 <= rows; i += 8) ADFL_NAME(dot_tile)(8, X + i * ldx, ldx, p, T, last, E + i);
    if (i + 4 <= rows) {
        ADFL_NAME(dot_tile)(4, X + i * ldx, ldx, p, T, last, E + i);
        i += 4;
    }
    if (i + 2 <= rows) {
        ADFL_NAME(dot_tile)(2, X + i * ldx, ldx, p, T, last, E + i);
        i += 2;
    }
    if (i < rows) ADFL_NAME(dot_tile)(1, X + i * ldx, ldx, p, T, last, E + i);
}

/* One column: K vectors of X'E over all rows, kept in registers from the first row to the last. The
 * last vector stands at `end` and adds only the lanes in `keep`: it may overlap the one before. */
ADFL_TARGET ADFL_INLINE void ADFL_NAME(add_tile)(
    const int K, const double *X, ptrdiff_t ldx, ptrdiff_t rows, ptrdiff_t end, const double *E,
    const VEC keep, double *G)
{
    VEC acc[13];
    UNROLL for (int k = 0; k < K; k++) acc[k] = (VEC){0};
    for (ptrdiff_t i = 0; i < rows; i++) {
        const VEC e = SPLAT(E[i]);
        UNROLL for (int k = 0; k < K; k++) acc[k] += LOAD(X + i * ldx + (k < K - 1 ? k * LANES : end)) * e;
    }
    UNROLL for (int k = 0; k < K - 1; k++) STORE(G + k * LANES, LOAD(G + k * LANES) + acc[k]);
    STORE(G + end, LOAD(G + end) + acc[K - 1] * keep);
}

/* Rows shorter than a vector. */
ADFL_TARGET ADFL_INLINE void ADFL_NAME(add_narrow)(
    const int K, const double *X, ptrdiff_t ldx, ptrdiff_t rows, const double *E, double *G)
{
    double acc[8];
    UNROLL for (int k = 0; k < K; k++) acc[k] = G[k];
    for (ptrdiff_t i = 0; i < rows; i++) UNROLL for (int k = 0; k < K; k++) acc[k] += X[i * ldx + k] * E[i];
    UNROLL for (int k = 0; k < K; k++) G[k] = acc[k];
}

/* The vectors of a column are split into tiles of nearly equal size, none above thirteen: the sums, a
 * residual and what is read fill the sixteen registers. */
ADFL_TARGET static void ADFL_NAME(add_rows)(
    const double *X, ptrdiff_t ldx, ptrdiff_t rows, ptrdiff_t p, const double *E, double *G)
{
    if (p < LANES) {
        TILES(p, ADFL_NAME(add_narrow), X, ldx, rows, E, G)
        return;
    }
    const VEC all = SPLAT(1.0), tail = ADFL_NAME(new_lanes)((p - 1) / LANES * LANES, p);
    const ptrdiff_t vectors = (p + LANES - 1) / LANES, tiles = (vectors + 12) / 13;
    for (ptrdiff_t t = 0, first = 0; t < tiles; t++) {
        const ptrdiff_t size = (vectors - first) / (tiles - t), k = first * LANES;
        const ptrdiff_t end = t + 1 < tiles ? (size - 1) * LANES : p - LANES - k;
        const VEC keep = t + 1 < tiles ? all : tail;
        LONG_TILES(size, ADFL_NAME(add_tile), X + k, ldx, rows, end, E, keep, G + k)
        first += size;
    }
}

/* Many columns: out[r] = sum_k A[r * down + k * along] B[k] for R rows of V vectors, added to what stands in
 * `out` or to -b[r]. Columns lie side by side, so every number of A meets full vectors and no lanes are
 * added up. */
ADFL_TARGET ADFL_INLINE void ADFL_NAME(wide_tile)(
    const int R, const int V, const int begin, const double *A, ptrdiff_t down, ptrdiff_t along, ptrdiff_t terms,
    const double *B, ptrdiff_t cols, const double *b, double *out)
{
    VEC acc[8][2];
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int v = 0; v < V; v++) {
            acc[r][v] = (VEC){0};
            if (begin == AT_OUT) acc[r][v] = LOAD(out + r * cols + v * LANES);
            if (begin == AT_MINUS_B) acc[r][v] = SPLAT(-b[r]);
        }
    for (ptrdiff_t k = 0; k < terms; k++) {
        VEC beside[2];
        UNROLL for (int v = 0; v < V; v++) beside[v] = LOAD(B + k * cols + v * LANES);
        UNROLL for (int r = 0; r < R; r++) {
            const VEC a = SPLAT(A[r * down + k * along]);
            UNROLL for (int v = 0; v < V; v++) acc[r][v] += a * beside[v];
        }
    }
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int v = 0; v < V; v++) STORE(out + r * cols + v * LANES, acc[r][v]);
}

/* Tiles of nearly equal size, up to 6 x 2 vectors: twelve sums, two vectors of B and one of A fill the
 * sixteen registers. */
ADFL_TARGET ADFL_INLINE void ADFL_NAME(wide)(
    const int begin, const double *A, ptrdiff_t down, ptrdiff_t along, ptrdiff_t rows, ptrdiff_t terms,
    const double *B, ptrdiff_t cols, const double *b, double *out)
{
    for (ptrdiff_t c = 0; c < cols; c += 2 * LANES) {
        const int pair = c + 2 * LANES <= cols;
        const ptrdiff_t most = pair ? 6 : 8, tiles = (rows + most - 1) / most;
        for (ptrdiff_t t = 0; t < tiles; t++) {
            const ptrdiff_t first = rows * t / tiles, size = rows * (t + 1) / tiles - first;
            const double *from = A + first * down, *less = begin == AT_MINUS_B ? b + first : b;
            double *to = out + first * cols + c;
            if (pair) {
                TILES(size, ADFL_NAME(wide_tile), 2, begin, from, down, along, terms, B + c, cols, less, to)
            } else {
                TILES(size, ADFL_NAME(wide_tile), 1, begin, from, down, along, terms, B + c, cols, less, to)
            }
        }
    }
}

ADFL_TARGET static void ADFL_NAME(products)(
    const double *X, ptrdiff_t ldx, ptrdiff_t rows, ptrdiff_t p, const double *T, ptrdiff_t cols, double *E)
{
    if (cols == 1)
        ADFL_NAME(dots)(X, ldx, rows, p, T, E);
    else
        ADFL_NAME(wide)(AT_ZERO, X, ldx, 1, rows, p, T, cols, NULL, E);
}

ADFL_TARGET static void ADFL_NAME(affine)(
    const double *A, ptrdiff_t lda, ptrdiff_t rows, ptrdiff_t p, const double *T, ptrdiff_t cols, const double *b,
    double *G)
{
    if (cols > 1) {
        ADFL_NAME(wide)(AT_MINUS_B, A, lda, 1, rows, p, T, cols, b, G);
        return;
    }
    ADFL_NAME(dots)(A, lda, rows, p, T, G);
    for (ptrdiff_t k = 0; k < rows; k++) G[k] -= b[k];
}

ADFL_TARGET static void ADFL_NAME(accumulate)(
    const double *X, ptrdiff_t ldx, ptrdiff_t rows, ptrdiff_t p, const double *E, ptrdiff_t cols, double *G)
{
    if (cols == 1)
        ADFL_NAME(add_rows)(X, ldx, rows, p, E, G);
    else
        ADFL_NAME(wide)(AT_OUT, X, 1, ldx, p, rows, E, cols, NULL, G);
}

#if ADFL_LANES <= 4
/* G = A T - b for a symmetric A whose upper triangle is packed into blocks of 4 x 4, a row of blocks
 * after the other: a number off the diagonal is read once and serves both its row and its column. */
ADFL_TARGET static void ADFL_NAME(symmetric)(
    const double *A, ptrdiff_t blocks, const double *T, const double *b, double *G)
{
    enum { V = 4 / LANES };
    for (ptrdiff_t k = 0; k < 4 * blocks; k += LANES) STORE(G + k, -LOAD(b + k));
    for (ptrdiff_t g = 0; g < 4 * blocks; g += 4) {
        VEC acc[4], own[4];
        UNROLL for (int r = 0; r < 4; r++) {
            own[r] = SPLAT(T[g + r]);
            acc[r] = LOAD(A + 4 * r) * LOAD(T + g);
            UNROLL for (int v = 1; v < V; v++) acc[r] += LOAD(A + 4 * r + v * LANES) * LOAD(T + g + v * LANES);
        }
        A += 16;
        for (ptrdiff_t k = g + 4; k < 4 * blocks; k += 4, A += 16)
            UNROLL for (int v = 0; v < V; v++) {
                const double *a = A + v * LANES;
                const VEC t = LOAD(T + k + v * LANES);
                VEC low = LOAD(G + k + v * LANES), high = (VEC){0};
                UNROLL for (int r = 0; r < 4; r++) acc[r] += LOAD(a + 4 * r) * t;
                UNROLL for (int r = 0; r < 2; r++) {
                    low += LOAD(a + 4 * r) * own[r];
                    high += LOAD(a + 4 * r + 8) * own[r + 2];
                }
                STORE(G + k + v * LANES, low + high);
            }
        double sums[4];
        ADFL_NAME(lanes_sum4)(acc[0], acc[1], acc[2], acc[3], sums);
        UNROLL for (int r = 0; r < V; r++) STORE(G + g + r * LANES, LOAD(G + g + r * LANES) + LOAD(sums + r * LANES));
    }
}
#define SYMMETRIC ADFL_NAME(symmetric)
#else
#define SYMMETRIC symmetric_four /* blocks are narrower than these vectors */
#endif

#undef TILES
#undef LONG_TILES
