/* Dense arithmetic on blocks of rows, compiled once per instruction set and chosen at import.
 *
 * The bodies stand in blocks_impl.h and are included here with vectors of 2, 4 and 8 doubles. The
 * wheel therefore runs on every processor of its platform and still uses the widest units it finds.
 * A compiler without GNU vector types gets the same bodies with vectors of one double.
 *
 * Layouts, shared by all functions:
 *   X   rows x p, row i at X + i * ldx
 *   T   p x cols, the parameters, G their gradients; a column is an output of a run
 *   E   rows x cols, linear predictors and then residuals
 * `cols` is 1 or a multiple of the lanes. One column is a plain vector, and vectors run along it; else
 * vectors run along the columns. With one column T, G and all of its kind have room for a multiple of 8
 * entries, the last ones zero, and E has room for a multiple of 8 rows.
 */
#ifndef ADFL_BLOCKS_H
#define ADFL_BLOCKS_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "rules.h"

/* A family with a link; losses/families.py enters its classes under the same codes. */
enum {
    ADFL_GAUSSIAN,
    ADFL_BINOMIAL,
    ADFL_POISSON,
    ADFL_GAMMA,
    ADFL_NEGATIVE_BINOMIAL,
    ADFL_MULTINOMIAL,
    ADFL_HUBER,
    /* the families above with other links */
    ADFL_PROBIT,
    ADFL_CLOGLOG,
    ADFL_LOGLOG,
    ADFL_POISSON_IDENTITY,
    ADFL_POISSON_SQRT,
    ADFL_GAUSSIAN_LOG,
    ADFL_GAMMA_INVERSE,
    ADFL_GAMMA_IDENTITY,
    ADFL_INVERSE_GAUSSIAN_LOG,
    ADFL_INVERSE_GAUSSIAN_SQUARED,
    ADFL_TWEEDIE,
    ADFL_N_FAMILIES
};

typedef struct {
    const char *name;
    ptrdiff_t lanes;
    /* E = X T */
    void (*products)(const double *X, ptrdiff_t ldx, ptrdiff_t rows, ptrdiff_t p, const double *T, ptrdiff_t cols,
                     double *E);
    /* G += X' E */
    void (*accumulate)(const double *X, ptrdiff_t ldx, ptrdiff_t rows, ptrdiff_t p, const double *E, ptrdiff_t cols,
                       double *G);
    /* G = A T - b */
    void (*affine)(const double *A, ptrdiff_t lda, ptrdiff_t rows, ptrdiff_t p, const double *T, ptrdiff_t cols,
                   const double *b, double *G);
    /* the same for one column and a packed symmetric A of so many rows of 4 x 4 blocks, see there */
    void (*symmetric)(const double *A, ptrdiff_t blocks, const double *T, const double *b, double *G);
    /* in place: linear predictor -> derivative of the loss */
    void (*residuals)(int family, double par, const double *y, ptrdiff_t rows, double *E, ptrdiff_t cols,
                      ptrdiff_t outputs);
    /* G *= factor, for `size` entries, a multiple of the lanes */
    void (*scale)(double *G, ptrdiff_t size, double factor);
    /* out = sum_j weight[j] * theta[index[j]] over `count` rows of length `size` */
    void (*mix)(const double *theta, ptrdiff_t size, const int64_t *index, const double *weight,
                ptrdiff_t count, double *out);
    /* out = at - steps * gradient, a step for each column; squares[c] = squared norm of column c of out - old */
    void (*descend)(const double *at, const double *gradient, const double *steps, const double *old, ptrdiff_t size,
                    ptrdiff_t cols, double *out, double *squares);
    /* out = what a rule makes of a pool of `count` rows of runs * run entries, the client's own the first;
     * bad (0 or 1 for each row of the pool) is read by ADFL_CLIP_KNOWN alone; work as adfl_rule_work says */
    void (*screen)(const adfl_rule *rule, const double *theta, ptrdiff_t runs, ptrdiff_t run,
                   const int64_t *index, const double *weight, const unsigned char *bad, ptrdiff_t count,
                   double *out, double *work);
} adfl_ops;

/* What a product is added to. */
enum { AT_ZERO, AT_OUT, AT_MINUS_B };

#if defined(__GNUC__) && (defined(__x86_64__) || defined(__i386__))
#define ADFL_X86 1
#endif

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define ADFL_SHUFFLE __builtin_shufflevector
#endif
#endif

/* A hint that may point anywhere. */
#if defined(__GNUC__)
#define adfl_prefetch(at) __builtin_prefetch(at)
#else
#define adfl_prefetch(at) ((void)0)
#endif

#if defined(__GNUC__)
#define ADFL_INLINE static inline __attribute__((always_inline))
#define ADFL_NAME(base) ADFL_PASTE(base, ADFL_SUFFIX)
#define ADFL_PASTE(a, b) ADFL_PASTE2(a, b)
#define ADFL_PASTE2(a, b) a##b
#else
#define ADFL_INLINE static __inline
#define ADFL_NAME(base) base##_one
#endif

#if defined(__GNUC__)
#define ADFL_LANES 2
#define ADFL_SUFFIX _two
#define ADFL_TARGET
#include "blocks_impl.h"
#else
#define ADFL_LANES 1
#define ADFL_TARGET
#include "blocks_impl.h"
#endif

#ifdef ADFL_X86
#define ADFL_LANES 4
#define ADFL_SUFFIX _four
#define ADFL_TARGET __attribute__((target("avx2,fma")))
#include "blocks_impl.h"

#define ADFL_LANES 8
#define ADFL_SUFFIX _eight
#define ADFL_TARGET __attribute__((target("avx512f,avx512dq,avx2,fma")))
#include "blocks_impl.h"
#endif

/* Lanes 0 asks for the widest set this processor has; 2, 4 or 8 for that one (tests compare them).
 * Returns NULL where the processor lacks it. */
static const adfl_ops *adfl_pick(int lanes)
{
#if defined(ADFL_X86)
    __builtin_cpu_init();
    int wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq");
    int usual = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if ((lanes == 0 || lanes == 8) && wide) return &ops_eight;
    if ((lanes == 0 || lanes == 4) && usual) return &ops_four;
    return (lanes == 0 || lanes == 2) ? &ops_two : NULL;
#elif defined(__GNUC__)
    return (lanes == 0 || lanes == 2) ? &ops_two : NULL;
#else
    return lanes == 0 ? &ops_one : NULL;
#endif
}

#endif
