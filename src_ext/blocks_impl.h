/* Bodies of the block operations; see blocks.h, which includes this file once per vector width. */

#define VEC ADFL_NAME(adfl_vec)
#define WORD ADFL_NAME(adfl_word)
#define LANES ADFL_LANES
#if defined(__GNUC__)
typedef double VEC __attribute__((vector_size(8 * LANES), aligned(8), may_alias));
typedef int64_t WORD __attribute__((vector_size(8 * LANES), aligned(8), may_alias));
#else
typedef double VEC;
#endif
/* The tiles' loops have constant bounds; unrolled, their accumulators become registers. */
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#elif defined(__GNUC__)
#define UNROLL _Pragma("GCC unroll 16")
#else
#define UNROLL
#endif
#define LOAD(at) (*(const VEC *)(at))
#define STORE(at, value) (*(VEC *)(at) = (value))
/* Lane by lane: the value where `test` holds, else the other. */
#if defined(__GNUC__)
#define SELECT(test, yes, no) \
    ((VEC)(((WORD)(test) & (WORD)(yes)) | (~(WORD)(test) & (WORD)(no))))
#else
#define SELECT(test, yes, no) ((test) ? (yes) : (no))
#endif
/* x - 0 is x to the last bit and vanishes; x + 0 is not for x = -0 and stays */
#define SPLAT(value) ((value) - (VEC){0})

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
#if ADFL_LANES == 8 && defined(ADFL_SHUFFLE)
    /* halves first, then as with four lanes: each sum in the order of lanes_sum */
#define FOLD(v) (ADFL_SHUFFLE(v, v, 0, 1, 2, 3) + ADFL_SHUFFLE(v, v, 4, 5, 6, 7))
    const adfl_vec_four fa = FOLD(a), fb = FOLD(b), fc = FOLD(c), fd = FOLD(d);
#undef FOLD
    const adfl_vec_four ab = ADFL_SHUFFLE(fa, fb, 0, 4, 2, 6) + ADFL_SHUFFLE(fa, fb, 1, 5, 3, 7);
    const adfl_vec_four cd = ADFL_SHUFFLE(fc, fd, 0, 4, 2, 6) + ADFL_SHUFFLE(fc, fd, 1, 5, 3, 7);
    *(adfl_vec_four *)out = ADFL_SHUFFLE(ab, cd, 0, 1, 4, 5) + ADFL_SHUFFLE(ab, cd, 2, 3, 6, 7);
#elif ADFL_LANES == 4 && defined(ADFL_SHUFFLE)
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

#include "products_impl.h"

/* exp to about one unit in the last place: reduction by a multiple k of log 2 in two parts, then
 * 1 + r + r^2 q(r) with q of degree 9 interpolated at Chebyshev points of |r| <= log(2)/2 (relative
 * error 2e-17), and 2^k put together from bits. The argument is clamped to [-708, 709]; NaN stays NaN. */
ADFL_TARGET ADFL_INLINE VEC ADFL_NAME(fast_exp)(VEC x)
{
    const double shift = 6755399441055744.0; /* 1.5 * 2^52: adding it rounds to an integer */
    x = SELECT(x < -708.0, SPLAT(-708.0), x);
    x = SELECT(x > 709.0, SPLAT(709.0), x);
    const VEC shifted = x * 1.4426950408889634 + shift;
    const VEC k = shifted - shift;
    const VEC r = (x - k * 0.693147180369123816490) - k * 1.90821492927058770002e-10;
    /* Estrin's order: a short chain of dependent operations counts for more than their number */
    const VEC r2 = r * r, r4 = r2 * r2;
    const VEC low = (1.0 + r) + r2 * (0.5000000000000001 + r * 0.16666666666666669);
    const VEC next = (0.04166666666662413 + r * 0.008333333333330062)
                     + r2 * (0.0013888888917213717 + r * 0.00019841269863053618);
    const VEC high = (2.4801521295954376e-05 + r * 2.7557268459997064e-06)
                     + r2 * (2.7620088445409746e-07 + r * 2.510038549551032e-08);
    const VEC s = (low + r4 * next) + (r4 * r4) * high;
    /* the low bits of `shifted` are k */
#if defined(__GNUC__)
    return s * (VEC)(((WORD)shifted + 1023) << 52);
#else
    uint64_t bits;
    memcpy(&bits, &shifted, 8);
    bits = (bits + 1023) << 52;
    double scale;
    memcpy(&scale, &bits, 8);
    return s * scale;
#endif
}

ADFL_TARGET ADFL_INLINE VEC ADFL_NAME(root)(VEC x)
{
#if defined(__GNUC__)
    UNROLL for (int l = 0; l < LANES; l++) x[l] = sqrt(x[l]);
    return x;
#else
    return sqrt(x);
#endif
}

/* The complementary error function times exp(z^2), for z >= 0: with u = 4 / (4 + z) it is u times a
 * Chebyshev series in 2 u - 1 (interpolated; relative error 5e-15 with rounding), summed by Clenshaw. */
ADFL_TARGET ADFL_INLINE VEC ADFL_NAME(scaled_erfc)(const VEC z)
{
    static const double series[] = {
        0.4080244695491315, 0.3763582356763674, 0.14758035457222354, 0.04957131793002754,
        0.014227107557117116, 0.0034434932627175293, 0.0006822541832838837, 0.00010340451975766462,
        9.728545952149341e-06, -1.1988713751211733e-07, -2.174776770843014e-07, -3.029176782839378e-08,
        9.479915789565598e-10, 8.633410894400067e-10, 6.872156949780022e-11, -1.703478903829878e-11,
        -3.3918520166455734e-12, 2.617905892066119e-13, 1.2159355647959866e-13, -1.868070915347546e-15,
        -3.726487717437482e-15, 2.5100694469786146e-16, 6.130361918582386e-16};
    const VEC u = 4.0 / (4.0 + z), twice = 4.0 * u - 2.0;
    VEC next = (VEC){0}, sum = (VEC){0};
    for (int k = (int)(sizeof series / sizeof *series) - 1; k > 0; k--) {
        const VEC before = sum;
        sum = twice * sum - next + series[k];
        next = before;
    }
    return u * (0.5 * twice * sum - next + series[0]);
}

/* -y phi / Phi + (1 - y) phi / (1 - Phi), each hazard by the tail in which it does not cancel. */
ADFL_TARGET ADFL_INLINE VEC ADFL_NAME(probit)(const VEC y, const VEC eta)
{
    const double unit = 0.79788456080286535588; /* sqrt(2 / pi) */
    const VEC z = SELECT(eta < 0.0, -eta, eta) * 0.70710678118654752440;
    const VEC scaled = ADFL_NAME(scaled_erfc)(z), density = ADFL_NAME(fast_exp)(-z * z);
    const VEC far = unit / scaled, near = unit * density / (2.0 - density * scaled);
    return (1.0 - y) * SELECT(eta < 0.0, near, far) - y * SELECT(eta < 0.0, far, near);
}

/* (1 - y) t - y t / (exp(t) - 1) with t = exp(eta); the quotient by its series (Bernoulli numbers) for small t. */
ADFL_TARGET ADFL_INLINE VEC ADFL_NAME(cloglog)(const VEC y, const VEC eta)
{
    const VEC t = ADFL_NAME(fast_exp)(eta), s = t * t, tail = ADFL_NAME(fast_exp)(-t);
    const VEC even = 1.0 / 12.0 + s * (-1.0 / 720.0 + s * (1.0 / 30240.0 + s * (-1.0 / 1209600.0
                     + s * (1.0 / 47900160.0 - s * 5.284190138687493e-10))));
    const VEC large = SELECT(t > 700.0, (VEC){0}, t * tail / (1.0 - tail));
    const VEC event = SELECT(t < 0.5, 1.0 - 0.5 * t + s * even, large);
    return (1.0 - y) * t - y * event;
}

/* Variance mu^k and mu = exp(eta): mu^(2 - k) - y mu^(1 - k). */
ADFL_TARGET ADFL_INLINE VEC ADFL_NAME(power_variance)(double k, const VEC y, const VEC eta)
{
    return ADFL_NAME(fast_exp)((2.0 - k) * eta) - y * ADFL_NAME(fast_exp)((1.0 - k) * eta);
}

/* The linear predictor, or the limit where it lies below; written so that NaN stays NaN. */
ADFL_TARGET ADFL_INLINE VEC ADFL_NAME(at_least)(const VEC eta, double limit)
{
    return SELECT(eta < limit, SPLAT(limit), eta);
}

/* Derivative of the loss in the linear predictor for families of one output. `par` is described in
 * losses/family.py; links that want a positive linear predictor have its lower limit there. */
ADFL_TARGET ADFL_INLINE VEC ADFL_NAME(residual)(const int family, double par, const VEC y, const VEC eta)
{
    switch (family) {
    case ADFL_BINOMIAL: return 1.0 / (1.0 + ADFL_NAME(fast_exp)(-eta)) - y;
    case ADFL_POISSON: return ADFL_NAME(fast_exp)(eta) - y;
    case ADFL_GAMMA: return 1.0 - y * ADFL_NAME(fast_exp)(-eta);
    case ADFL_NEGATIVE_BINOMIAL: {
        /* (mu - y) / (1 + par mu), divided through by mu; large and small mu stay finite */
        const VEC inverse = ADFL_NAME(fast_exp)(-eta);
        const VEC share = 1.0 / (inverse + par);
        return share - y * (inverse * share);
    }
    case ADFL_HUBER: {
        /* eta - y cut to [-par, par]; written so that NaN stays NaN */
        const VEC r = eta - y;
        const VEC below = SELECT(r > par, SPLAT(par), r);
        return SELECT(below < -par, SPLAT(-par), below);
    }
    case ADFL_PROBIT: return ADFL_NAME(probit)(y, eta);
    case ADFL_CLOGLOG: return ADFL_NAME(cloglog)(y, eta);
    case ADFL_LOGLOG: return -ADFL_NAME(cloglog)(1.0 - y, -eta);
    case ADFL_POISSON_IDENTITY: return 1.0 - y / ADFL_NAME(at_least)(eta, par);
    case ADFL_POISSON_SQRT: {
        const VEC root = ADFL_NAME(at_least)(eta, par);
        return 2.0 * (root - y / root);
    }
    case ADFL_GAUSSIAN_LOG: return ADFL_NAME(power_variance)(0.0, y, eta);
    case ADFL_GAMMA_INVERSE: return y - 1.0 / ADFL_NAME(at_least)(eta, par);
    case ADFL_GAMMA_IDENTITY: {
        const VEC inverse = 1.0 / ADFL_NAME(at_least)(eta, par);
        return inverse - y * inverse * inverse;
    }
    case ADFL_INVERSE_GAUSSIAN_LOG: return ADFL_NAME(power_variance)(3.0, y, eta);
    case ADFL_INVERSE_GAUSSIAN_SQUARED:
        return 0.5 * (y - 1.0 / ADFL_NAME(root)(ADFL_NAME(at_least)(eta, par)));
    case ADFL_TWEEDIE: return ADFL_NAME(power_variance)(par, y, eta);
    default: return eta - y;
    }
}

/* The family is a constant at every call. With one column the rows lie side by side, and the last
 * vector of them may reach beyond the last row: E has room for it, y has not. */
ADFL_TARGET ADFL_INLINE void ADFL_NAME(residuals_of)(
    const int family, double par, const double *y, ptrdiff_t rows, double *E, ptrdiff_t cols)
{
    if (cols > 1) {
        for (ptrdiff_t i = 0; i < rows; i++)
            for (ptrdiff_t c = 0; c < cols; c += LANES) {
                double *e = E + i * cols + c;
                STORE(e, ADFL_NAME(residual)(family, par, SPLAT(y[i]), LOAD(e)));
            }
        return;
    }
    const ptrdiff_t full = rows / LANES * LANES;
    for (ptrdiff_t i = 0; i < full; i += LANES)
        STORE(E + i, ADFL_NAME(residual)(family, par, LOAD(y + i), LOAD(E + i)));
    if (full < rows) {
        double rest[LANES] = {0};
        memcpy(rest, y + full, (rows - full) * sizeof(double));
        STORE(E + full, ADFL_NAME(residual)(family, par, LOAD(rest), LOAD(E + full)));
    }
}

/* Multinomial logit with the first class as reference: softmax minus indicator, LANES rows at a time. */
ADFL_TARGET static void ADFL_NAME(softmax_residuals)(
    const double *y, ptrdiff_t rows, double *E, ptrdiff_t cols, ptrdiff_t outputs)
{
    for (ptrdiff_t i = 0; i < rows; i += LANES) {
        const ptrdiff_t count = rows - i < LANES ? rows - i : LANES;
        for (ptrdiff_t first = 0; first + outputs <= cols; first += outputs) {
            double *e = E + i * cols + first;
            double lanes[LANES] = {0}, label[LANES] = {0};
            VEC top = (VEC){0};
            memcpy(label, y + i, count * sizeof(double));
#define EACH_OUTPUT for (ptrdiff_t j = 0; j < outputs; j++)
#define GATHER for (ptrdiff_t l = 0; l < count; l++) lanes[l] = e[l * cols + j]
#define SCATTER(value) \
    STORE(lanes, value); \
    for (ptrdiff_t l = 0; l < count; l++) e[l * cols + j] = lanes[l]
            EACH_OUTPUT {
                GATHER;
                /* written so that NaN is taken over and not lost */
                top = SELECT(LOAD(lanes) <= top, top, LOAD(lanes));
            }
            VEC total = ADFL_NAME(fast_exp)(-top);
            EACH_OUTPUT {
                GATHER;
                const VEC part = ADFL_NAME(fast_exp)(LOAD(lanes) - top);
                total += part;
                SCATTER(part);
            }
            EACH_OUTPUT {
                GATHER;
                const VEC one = SELECT(LOAD(label) == (double)(j + 1), SPLAT(1.0), (VEC){0});
                SCATTER(LOAD(lanes) / total - one);
            }
#undef EACH_OUTPUT
#undef GATHER
#undef SCATTER
        }
    }
}

ADFL_TARGET static void ADFL_NAME(residuals)(
    int family, double par, const double *y, ptrdiff_t rows, double *E, ptrdiff_t cols, ptrdiff_t outputs)
{
#define FAMILY(name) \
    case name: ADFL_NAME(residuals_of)(name, par, y, rows, E, cols); break;
    switch (family) {
        FAMILY(ADFL_GAUSSIAN) FAMILY(ADFL_BINOMIAL) FAMILY(ADFL_POISSON) FAMILY(ADFL_GAMMA)
        FAMILY(ADFL_NEGATIVE_BINOMIAL) FAMILY(ADFL_HUBER) FAMILY(ADFL_PROBIT) FAMILY(ADFL_CLOGLOG)
        FAMILY(ADFL_LOGLOG) FAMILY(ADFL_POISSON_IDENTITY) FAMILY(ADFL_POISSON_SQRT) FAMILY(ADFL_GAUSSIAN_LOG)
        FAMILY(ADFL_GAMMA_INVERSE) FAMILY(ADFL_GAMMA_IDENTITY) FAMILY(ADFL_INVERSE_GAUSSIAN_LOG)
        FAMILY(ADFL_INVERSE_GAUSSIAN_SQUARED) FAMILY(ADFL_TWEEDIE)
    default: ADFL_NAME(softmax_residuals)(y, rows, E, cols, outputs);
    }
#undef FAMILY
}

ADFL_TARGET static void ADFL_NAME(scale)(double *G, ptrdiff_t size, double factor)
{
    for (ptrdiff_t k = 0; k < size; k += LANES) STORE(G + k, LOAD(G + k) * factor);
}

ADFL_TARGET static void ADFL_NAME(mix)(
    const double *theta, ptrdiff_t size, const int64_t *index, const double *weight,
    ptrdiff_t count, double *out)
{
    ptrdiff_t k = 0;
    for (; k + 7 * LANES <= size; k += 7 * LANES) {
        VEC acc[7] = {{0}};
        for (ptrdiff_t j = 0; j < count; j++) {
            const double *from = theta + index[j] * size + k;
            UNROLL for (int l = 0; l < 7; l++) acc[l] += LOAD(from + l * LANES) * weight[j];
        }
        UNROLL for (int l = 0; l < 7; l++) STORE(out + k + l * LANES, acc[l]);
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

ADFL_TARGET static void ADFL_NAME(descend)(
    const double *at, const double *gradient, const double *steps, const double *old, ptrdiff_t size,
    ptrdiff_t cols, double *out, double *squares)
{
    if (cols == 1) {
        VEC total = (VEC){0};
        for (ptrdiff_t k = 0; k < size; k += LANES) {
            const VEC next = LOAD(at + k) - LOAD(gradient + k) * steps[0], move = next - LOAD(old + k);
            STORE(out + k, next);
            total += move * move;
        }
        squares[0] = ADFL_NAME(lanes_sum)(total);
        return;
    }
    for (ptrdiff_t c = 0; c < cols; c += LANES) {
        VEC total = (VEC){0};
        for (ptrdiff_t k = c; k < size; k += cols) {
            const VEC next = LOAD(at + k) - LOAD(gradient + k) * LOAD(steps + c), move = next - LOAD(old + k);
            STORE(out + k, next);
            total += move * move;
        }
        STORE(squares + c, total);
    }
}

#include "rules_impl.h"

#define ADFL_TEXT2(x) #x
#define ADFL_TEXT(x) ADFL_TEXT2(x)
static const adfl_ops ADFL_NAME(ops) = {
    ADFL_TEXT(ADFL_LANES) " doubles", ADFL_LANES, ADFL_NAME(products), ADFL_NAME(accumulate), ADFL_NAME(affine),
    SYMMETRIC, ADFL_NAME(residuals), ADFL_NAME(scale), ADFL_NAME(mix), ADFL_NAME(descend), ADFL_NAME(screen)};

#undef ADFL_TEXT
#undef ADFL_TEXT2
#undef VEC
#undef WORD
#undef SELECT
#undef SPLAT
#undef LANES
#undef LOAD
#undef STORE
#undef UNROLL
#undef SYMMETRIC
#undef ADFL_LANES
#undef ADFL_SUFFIX
#undef ADFL_TARGET
