/* Dense arithmetic on blocks of rows, compiled once per instruction set and chosen at import.
 *
 * The bodies stand in blocks_impl.h and are included here with vectors of 2, 4 and 8 doubles. The
 * wheel therefore runs on every processor of its platform and still uses the widest units it finds.
 * A compiler without GNU vector types gets the same bodies with vectors of one double.
 *
 * Layouts, shared by all functions:
 *   X   rows x p, row i at X + i * ldx
 *   T   columns of parameters: column c (an output of a run) at T + c * ldt
 *   E   linear predictors and then residuals: column c at E + c * lde, one entry a row
 */
#ifndef ADFL_BLOCKS_H
#define ADFL_BLOCKS_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { ADFL_GAUSSIAN, ADFL_BINOMIAL, ADFL_POISSON, ADFL_GAMMA, ADFL_NEGATIVE_BINOMIAL, ADFL_MULTINOMIAL };

/* How a client combines what it hears; the order is that of adfl_stats/rules.py. */
enum {
    ADFL_MEAN,
    ADFL_MEDIAN,
    ADFL_TRIMMED,       /* own row and the others without the `count` largest and smallest values */
    ADFL_KRUM,          /* `count` rows may be bad */
    ADFL_BULYAN,        /* likewise */
    ADFL_CLIP,          /* differences to the own row shortened to the radius `value` */
    ADFL_CLIP_SECOND,   /* radius: the second largest difference */
    ADFL_CLIP_DECLARED, /* radius: from the closest rows, all but the weight `value` */
    ADFL_CLIP_KNOWN,    /* radius: from the rows that are not bad */
    ADFL_GEOMETRIC,     /* `count` Weiszfeld iterations, distances at least `value` */
    ADFL_IOS,           /* `count` rows are dropped */
    ADFL_NNA            /* likewise */
};

typedef struct {
    int kind;
    ptrdiff_t count;
    double value;
} adfl_rule;

/* Coordinates that are sorted together: a pool of forty rows of them stays in the first-level cache. */
#define ADFL_ROW_TILE 64

/* Doubles of work space for pools of up to `widest` rows. */
static ptrdiff_t adfl_rule_work(const adfl_rule *rule, ptrdiff_t widest)
{
    if (rule->kind == ADFL_MEAN) return 0;
    if (rule->kind == ADFL_KRUM || rule->kind == ADFL_BULYAN) return widest * (ADFL_ROW_TILE + 3 + widest);
    return widest * ADFL_ROW_TILE;
}

/* Sort keys with their values, which break ties: Shell's sort, short and good enough for neighbourhoods. */
static void adfl_sort(double *key, double *value, ptrdiff_t count)
{
    static const ptrdiff_t gaps[] = {1750, 701, 301, 132, 57, 23, 10, 4, 1};
    for (int g = 0; g < 9; g++) {
        const ptrdiff_t gap = gaps[g];
        for (ptrdiff_t i = gap; i < count; i++) {
            const double k = key[i], v = value[i];
            ptrdiff_t j = i;
            for (; j >= gap && (key[j - gap] > k || (key[j - gap] == k && value[j - gap] > v)); j -= gap) {
                key[j] = key[j - gap];
                value[j] = value[j - gap];
            }
            key[j] = k;
            value[j] = v;
        }
    }
}

typedef struct {
    const char *name;
    /* E[c][i] = sum_k X[i][k] T[c][k] */
    void (*products)(const double *X, ptrdiff_t ldx, ptrdiff_t rows, ptrdiff_t p,
                     const double *T, ptrdiff_t ldt, ptrdiff_t cols, double *E, ptrdiff_t lde);
    /* G[c][k] += sum_i E[c][i] X[i][k] */
    void (*accumulate)(const double *X, ptrdiff_t ldx, ptrdiff_t rows, ptrdiff_t p,
                       const double *E, ptrdiff_t lde, ptrdiff_t cols, double *G, ptrdiff_t ldg);
    /* in place: linear predictor -> derivative of the loss; cols = runs x outputs */
    void (*residuals)(int family, double par, const double *y, ptrdiff_t rows,
                      double *E, ptrdiff_t lde, ptrdiff_t cols, ptrdiff_t outputs, double *work);
    /* out = sum_j weight[j] * theta[index[j]] over `count` rows of length `size` */
    void (*mix)(const double *theta, ptrdiff_t size, const int64_t *index, const double *weight,
                ptrdiff_t count, double *out);
    /* out = at - step * gradient; returns the Euclidean norm of out - old; size is a multiple of 8 */
    double (*descend)(const double *at, const double *gradient, double step, const double *old,
                      ptrdiff_t size, double *out);
    /* out = what a rule makes of a pool of `count` rows of runs * run entries, the client's own the first;
     * bad (0 or 1 for each row of the pool) is read by ADFL_CLIP_KNOWN alone; work as adfl_rule_work says */
    void (*screen)(const adfl_rule *rule, const double *theta, ptrdiff_t runs, ptrdiff_t run,
                   const int64_t *index, const double *weight, const unsigned char *bad, ptrdiff_t count,
                   double *out, double *work);
} adfl_ops;

#if defined(__GNUC__) && (defined(__x86_64__) || defined(__i386__))
#define ADFL_X86 1
#endif

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define ADFL_SHUFFLE __builtin_shufflevector
#endif
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
