/* Bodies of the block operations; see blocks.h, which includes this file once per vector width. */

#define VEC ADFL_NAME(adfl_vec)
#define LANES ADFL_LANES
#if defined(__GNUC__)
typedef double VEC __attribute__((vector_size(8 * LANES), aligned(8), may_alias));
#else
typedef double VEC;
#endif
/* The tiles' loops have constant bounds; unrolled, their accumulators become registers. */
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#elif defined(__GNUC__)
#define UNROLL _Pragma("GCC unroll 8")
#else
#define UNROLL
#endif
#define LOAD(at) (*(const VEC *)(at))
#define STORE(at, value) (*(VEC *)(at) = (value))

ADFL_TARGET ADFL_INLINE double ADFL_NAME(lanes_sum)(const VEC v)
{
#if ADFL_LANES == 8
    return ((v[0] + v[4]) + (v[1] + v[5])) + ((v[2] + v[6]) + (v[3] + v[7]));
#elif ADFL_LANES == 4
    return (v[0] + v[2]) + (v[1] + v[3]);
#elif ADFL_LANES == 2
    return v[0] + v[1];
#else
    return v;
#endif
}

/* Sums of the lanes of four vectors, side by side. */
ADFL_TARGET ADFL_INLINE void ADFL_NAME(lanes_sum4)(const VEC a, const VEC b, const VEC c, const VEC d, double *out)
{
#if ADFL_LANES == 4 && defined(ADFL_SHUFFLE)
    const VEC ab = ADFL_SHUFFLE(a, b, 0, 4, 2, 6) + ADFL_SHUFFLE(a, b, 1, 5, 3, 7);
    const VEC cd = ADFL_SHUFFLE(c, d, 0, 4, 2, 6) + ADFL_SHUFFLE(c, d, 1, 5, 3, 7);
    STORE(out, ADFL_SHUFFLE(ab, cd, 0, 1, 4, 5) + ADFL_SHUFFLE(ab, cd, 2, 3, 6, 7));
#else
    out[0] = ADFL_NAME(lanes_sum)(a);
    out[1] = ADFL_NAME(lanes_sum)(b);
    out[2] = ADFL_NAME(lanes_sum)(c);
    out[3] = ADFL_NAME(lanes_sum)(d);
#endif
}

/* The last p % LANES entries of a row are read as the last LANES entries, in bounds, and the lanes
 * that were used before are multiplied by zero: `keep` is 1 on the new lanes. */
ADFL_TARGET ADFL_INLINE VEC ADFL_NAME(new_lanes)(ptrdiff_t done, ptrdiff_t p)
{
    double keep[LANES];
    for (int l = 0; l < LANES; l++) keep[l] = p - LANES + l >= done ? 1.0 : 0.0;
    return LOAD(keep);
}

/* R x C tile of dot products; R and C are constants at every call, so the loops unroll and the
 * accumulators live in registers. */
ADFL_TARGET ADFL_INLINE void ADFL_NAME(dot_tile)(
    const int R, const int C, const double *X, ptrdiff_t ldx, ptrdiff_t p,
    const double *T, ptrdiff_t ldt, const VEC keep, double *E, ptrdiff_t lde)
{
    VEC acc[8][4], t[4];
    ptrdiff_t k = 0;
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int c = 0; c < C; c++) acc[r][c] = (VEC){0};
    for (; k + LANES <= p; k += LANES) {
        UNROLL for (int c = 0; c < C; c++) t[c] = LOAD(T + c * ldt + k);
        UNROLL for (int r = 0; r < R; r++) {
            const VEC x = LOAD(X + r * ldx + k);
            UNROLL for (int c = 0; c < C; c++) acc[r][c] += x * t[c];
        }
    }
    if (k < p) {
        k = p - LANES;
        UNROLL for (int c = 0; c < C; c++) t[c] = LOAD(T + c * ldt + k) * keep;
        UNROLL for (int r = 0; r < R; r++) {
            const VEC x = LOAD(X + r * ldx + k);
            UNROLL for (int c = 0; c < C; c++) acc[r][c] += x * t[c];
        }
    }
    UNROLL for (int c = 0; c < C; c++) {
        UNROLL for (int r = 0; r + 4 <= R; r += 4)
            ADFL_NAME(lanes_sum4)(acc[r][c], acc[r + 1][c], acc[r + 2][c], acc[r + 3][c], E + c * lde + r);
        UNROLL for (int r = R / 4 * 4; r < R; r++) E[c * lde + r] = ADFL_NAME(lanes_sum)(acc[r][c]);
    }
}

ADFL_TARGET ADFL_INLINE void ADFL_NAME(dot_columns)(
    const int R, const int C, const double *X, ptrdiff_t ldx, ptrdiff_t rows, ptrdiff_t p,
    const double *T, ptrdiff_t ldt, double *E, ptrdiff_t lde)
{
    const VEC keep = ADFL_NAME(new_lanes)(p / LANES * LANES, p);
    ptrdiff_t i = 0;
    for (; i + R <= rows; i += R)
        ADFL_NAME(dot_tile)(R, C, X + i * ldx, ldx, p, T, ldt, keep, E + i, lde);
    if (R > 4 && i + 4 <= rows) {
        ADFL_NAME(dot_tile)(4, C, X + i * ldx, ldx, p, T, ldt, keep, E + i, lde);
        i += 4;
    }
    if (i + 2 <= rows) {
        ADFL_NAME(dot_tile)(2, C, X + i * ldx, ldx, p, T, ldt, keep, E + i, lde);
        i += 2;
    }
    if (i < rows) ADFL_NAME(dot_tile)(1, C, X + i * ldx, ldx, p, T, ldt, keep, E + i, lde);
}

ADFL_TARGET static void ADFL_NAME(products)(
    const double *X, ptrdiff_t ldx, ptrdiff_t rows, ptrdiff_t p,
    const double *T, ptrdiff_t ldt, ptrdiff_t cols, double *E, ptrdiff_t lde)
{
    ptrdiff_t c = 0;
    if (p < LANES) { /* a row shorter than a vector */
        for (; c < cols; c++)
            for (ptrdiff_t i = 0; i < rows; i++) {
                double total = 0.0;
                for (ptrdiff_t k = 0; k < p; k++) total += X[i * ldx + k] * T[c * ldt + k];
                E[c * lde + i] = total;
            }
        return;
    }
    for (; c + 3 <= cols && cols - c != 4; c += 3)
        ADFL_NAME(dot_columns)(4, 3, X, ldx, rows, p, T + c * ldt, ldt, E + c * lde, lde);
    for (; c + 2 <= cols; c += 2)
        ADFL_NAME(dot_columns)(4, 2, X, ldx, rows, p, T + c * ldt, ldt, E + c * lde, lde);
    if (c < cols)
        ADFL_NAME(dot_columns)(8, 1, X, ldx, rows, p, T + c * ldt, ldt, E + c * lde, lde);
}

/* K vectors of C columns of X'E over all rows, kept in registers from the first row to the last. The
 * last vector stands at `end` and adds only the lanes in `keep`: it may overlap the one before. */
ADFL_TARGET ADFL_INLINE void ADFL_NAME(add_tile)(
    const int K, const int C, const double *X, ptrdiff_t ldx, ptrdiff_t rows, ptrdiff_t end,
    const double *E, ptrdiff_t lde, const VEC keep, double *G, ptrdiff_t ldg)
{
    VEC acc[8][4];
    UNROLL for (int k = 0; k < K; k++)
        UNROLL for (int c = 0; c < C; c++) acc[k][c] = (VEC){0};
    for (ptrdiff_t i = 0; i < rows; i++) {
        VEC e[4];
        UNROLL for (int c = 0; c < C; c++) e[c] = E[c * lde + i] - (VEC){0};
        UNROLL for (int k = 0; k < K; k++) {
            const VEC x = LOAD(X + i * ldx + (k < K - 1 ? k * LANES : end));
            UNROLL for (int c = 0; c < C; c++) acc[k][c] += x * e[c];
        }
    }
    UNROLL for (int c = 0; c < C; c++) {
        UNROLL for (int k = 0; k < K - 1; k++)
            STORE(G + c * ldg + k * LANES, LOAD(G + c * ldg + k * LANES) + acc[k][c]);
        STORE(G + c * ldg + end, LOAD(G + c * ldg + end) + acc[K - 1][c] * keep);
    }
}

/* Splits the p entries into tiles of nearly equal size, none above K vectors. */
ADFL_TARGET ADFL_INLINE void ADFL_NAME(add_columns)(
    const int K, const int C, const double *X, ptrdiff_t ldx, ptrdiff_t rows, ptrdiff_t p,
    const double *E, ptrdiff_t lde, double *G, ptrdiff_t ldg)
{
    const VEC all = (VEC){0} + 1.0, tail = ADFL_NAME(new_lanes)((p - 1) / LANES * LANES, p);
    const ptrdiff_t vectors = (p + LANES - 1) / LANES, tiles = (vectors + K - 1) / K;
    for (ptrdiff_t t = 0; t < tiles; t++) {
        const ptrdiff_t first = vectors * t / tiles, last = vectors * (t + 1) / tiles, k = first * LANES;
        const ptrdiff_t end = (t + 1 < tiles ? (last - 1) * LANES : p - LANES) - k;
        const VEC keep = t + 1 < tiles ? all : tail;
#define TILE(size) \
    case size: \
        if (size <= K) ADFL_NAME(add_tile)(size, C, X + k, ldx, rows, end, E, lde, keep, G + k, ldg); \
        break;
        switch (last - first) {
            TILE(1) TILE(2) TILE(3) TILE(4) TILE(5) TILE(6) TILE(7) TILE(8)
        }
#undef TILE
    }
}

ADFL_TARGET static void ADFL_NAME(accumulate)(
    const double *X, ptrdiff_t ldx, ptrdiff_t rows, ptrdiff_t p,
    const double *E, ptrdiff_t lde, ptrdiff_t cols, double *G, ptrdiff_t ldg)
{
    ptrdiff_t c = 0;
    if (p < LANES) {
        for (; c < cols; c++)
            for (ptrdiff_t i = 0; i < rows; i++)
                for (ptrdiff_t k = 0; k < p; k++) G[c * ldg + k] += X[i * ldx + k] * E[c * lde + i];
        return;
    }
    for (; c + 3 <= cols && cols - c != 4; c += 3)
        ADFL_NAME(add_columns)(4, 3, X, ldx, rows, p, E + c * lde, lde, G + c * ldg, ldg);
    for (; c + 2 <= cols; c += 2)
        ADFL_NAME(add_columns)(6, 2, X, ldx, rows, p, E + c * lde, lde, G + c * ldg, ldg);
    if (c < cols)
        ADFL_NAME(add_columns)(8, 1, X, ldx, rows, p, E + c * lde, lde, G + c * ldg, ldg);
}

/* exp to about one unit in the last place, written so that the loop around it vectorises: reduction
 * by a multiple k of log 2 in two parts, Taylor series to degree 13 on |r| <= log(2)/2 (truncation
 * 4e-18), and 2^k put together from bits. The argument is clamped to [-708, 709]; NaN stays NaN. */
ADFL_TARGET ADFL_INLINE double ADFL_NAME(fast_exp)(double x)
{
    const double shift = 6755399441055744.0; /* 1.5 * 2^52: adding it rounds to an integer */
    double u = x < -708.0 ? -708.0 : x;
    u = u > 709.0 ? 709.0 : u;
    const double shifted = u * 1.4426950408889634 + shift;
    const double k = shifted - shift;
    const double r = (u - k * 0.693147180369123816490) - k * 1.90821492927058770002e-10;
    /* Estrin's order: a short chain of dependent operations counts for more than their number */
    const double r2 = r * r, r4 = r2 * r2;
    const double low = (1.0 + r) + r2 * (0.5 + r * (1.0 / 6.0));
    const double next = (1.0 / 24.0 + r * (1.0 / 120.0)) + r2 * (1.0 / 720.0 + r * (1.0 / 5040.0));
    const double third = (1.0 / 40320.0 + r * (1.0 / 362880.0)) + r2 * (1.0 / 3628800.0 + r * (1.0 / 39916800.0));
    const double high = third + r4 * (1.0 / 479001600.0 + r * (1.0 / 6227020800.0));
    const double s = (low + r4 * next) + (r4 * r4) * high;
    int64_t bits;
    memcpy(&bits, &shifted, 8);
    bits = (bits + 1023) << 52; /* the low bits of `shifted` are k */
    double scale;
    memcpy(&scale, &bits, 8);
    return s * scale;
}

/* Multinomial logit with the first class as reference: softmax minus indicator, column by column. */
ADFL_TARGET ADFL_INLINE void ADFL_NAME(softmax_residuals)(
    const double *y, ptrdiff_t rows, double *E, ptrdiff_t lde, ptrdiff_t outputs, double *work)
{
    double *top = work, *total = work + rows;
    for (ptrdiff_t i = 0; i < rows; i++) top[i] = 0.0;
    for (ptrdiff_t j = 0; j < outputs; j++)
        for (ptrdiff_t i = 0; i < rows; i++)
            top[i] = E[j * lde + i] > top[i] ? E[j * lde + i] : top[i];
    for (ptrdiff_t i = 0; i < rows; i++) total[i] = ADFL_NAME(fast_exp)(-top[i]);
    for (ptrdiff_t j = 0; j < outputs; j++)
        for (ptrdiff_t i = 0; i < rows; i++) {
            E[j * lde + i] = ADFL_NAME(fast_exp)(E[j * lde + i] - top[i]);
            total[i] += E[j * lde + i];
        }
    for (ptrdiff_t j = 0; j < outputs; j++)
        for (ptrdiff_t i = 0; i < rows; i++)
            E[j * lde + i] = E[j * lde + i] / total[i] - (y[i] == (double)(j + 1) ? 1.0 : 0.0);
}

ADFL_TARGET static void ADFL_NAME(residuals)(
    int family, double par, const double *y, ptrdiff_t rows,
    double *E, ptrdiff_t lde, ptrdiff_t cols, ptrdiff_t outputs, double *work)
{
    for (ptrdiff_t c = 0; c < cols; c += outputs) {
        double *e = E + c * lde;
        switch (family) {
        case ADFL_GAUSSIAN:
            for (ptrdiff_t i = 0; i < rows; i++) e[i] -= y[i];
            break;
        case ADFL_BINOMIAL:
            for (ptrdiff_t i = 0; i < rows; i++) e[i] = 1.0 / (1.0 + ADFL_NAME(fast_exp)(-e[i])) - y[i];
            break;
        case ADFL_POISSON:
            for (ptrdiff_t i = 0; i < rows; i++) e[i] = ADFL_NAME(fast_exp)(e[i]) - y[i];
            break;
        case ADFL_GAMMA:
            for (ptrdiff_t i = 0; i < rows; i++) e[i] = 1.0 - y[i] * ADFL_NAME(fast_exp)(-e[i]);
            break;
        case ADFL_NEGATIVE_BINOMIAL:
            for (ptrdiff_t i = 0; i < rows; i++) {
                /* (mu - y) / (1 + par mu), divided through by mu; large and small mu stay finite */
                const double inverse = ADFL_NAME(fast_exp)(-e[i]);
                const double share = 1.0 / (inverse + par);
                e[i] = share - y[i] * (inverse * share);
            }
            break;
        default:
            ADFL_NAME(softmax_residuals)(y, rows, e, lde, outputs, work);
        }
    }
}

ADFL_TARGET static void ADFL_NAME(mix)(
    const double *theta, ptrdiff_t size, const int64_t *index, const double *weight,
    ptrdiff_t count, double *out)
{
    ptrdiff_t k = 0;
    for (; k + 4 * LANES <= size; k += 4 * LANES) {
        VEC acc[4] = {{0}};
        for (ptrdiff_t j = 0; j < count; j++) {
            const double *from = theta + index[j] * size + k;
            UNROLL for (int l = 0; l < 4; l++) acc[l] += LOAD(from + l * LANES) * weight[j];
        }
        UNROLL for (int l = 0; l < 4; l++) STORE(out + k + l * LANES, acc[l]);
    }
    for (; k + LANES <= size; k += LANES) {
        VEC acc = (VEC){0};
        for (ptrdiff_t j = 0; j < count; j++) acc += LOAD(theta + index[j] * size + k) * weight[j];
        STORE(out + k, acc);
    }
    for (; k < size; k++) {
        double acc = 0.0;
        for (ptrdiff_t j = 0; j < count; j++) acc += theta[index[j] * size + k] * weight[j];
        out[k] = acc;
    }
}

ADFL_TARGET static double ADFL_NAME(descend)(
    const double *at, const double *gradient, double step, const double *old, ptrdiff_t size, double *out)
{
    VEC squares = (VEC){0};
    for (ptrdiff_t k = 0; k < size; k += LANES) {
        const VEC next = LOAD(at + k) - LOAD(gradient + k) * step;
        const VEC move = next - LOAD(old + k);
        STORE(out + k, next);
        squares += move * move;
    }
    return sqrt(ADFL_NAME(lanes_sum)(squares));
}

#include "rules_impl.h"

#define ADFL_TEXT2(x) #x
#define ADFL_TEXT(x) ADFL_TEXT2(x)
static const adfl_ops ADFL_NAME(ops) = {
    ADFL_TEXT(ADFL_LANES) " doubles", ADFL_NAME(products), ADFL_NAME(accumulate),
    ADFL_NAME(residuals), ADFL_NAME(mix), ADFL_NAME(descend), ADFL_NAME(screen)};

#undef ADFL_TEXT
#undef ADFL_TEXT2
#undef VEC
#undef LANES
#undef LOAD
#undef STORE
#undef UNROLL
#undef ADFL_LANES
#undef ADFL_SUFFIX
#undef ADFL_TARGET
