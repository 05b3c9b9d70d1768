/* What the rules of combination have in common, whatever the vector width; their bodies stand in
 * rules_impl.h. */
#ifndef ADFL_RULES_H
#define ADFL_RULES_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

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
    ADFL_NNA,           /* likewise */
    ADFL_N_RULES
};

/* Comparators (pairs of rows, as their places in a tile) that bring each row to the part of the order where
 * it belongs: below what is averaged, in it, or above. */
typedef struct {
    ptrdiff_t length;
    int32_t *pairs;
} adfl_network;

typedef struct {
    int kind;
    ptrdiff_t count;
    double value;
    adfl_network *networks; /* for the coordinate rules and those that end with one: by number of rows */
} adfl_rule;

/* Coordinates that are sorted together. Rows of one cache line: longer ones, at distances of powers of two,
 * would take each other's stores for their own. */
#define ADFL_ROW_TILE 8

/* Doubles of work space for pools of up to `widest` rows. */
static ptrdiff_t adfl_rule_work(const adfl_rule *rule, ptrdiff_t widest)
{
    if (rule->kind == ADFL_MEAN) return 0;
    if (rule->kind == ADFL_KRUM || rule->kind == ADFL_BULYAN) return widest * (ADFL_ROW_TILE + 3 + widest);
    return widest * ADFL_ROW_TILE;
}

/* Which of `count` ordered rows a rule averages: those from low to high. */
static void adfl_kept(const adfl_rule *rule, ptrdiff_t count, ptrdiff_t *low, ptrdiff_t *high)
{
    const ptrdiff_t most = count > 0 ? (count - 1) / 2 : 0;
    *low = rule->kind == ADFL_MEDIAN || rule->count > most ? most : rule->count;
    *high = count - *low;
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

/* Batcher's merge-exchange network for `count` rows; with pairs NULL its length alone. */
static ptrdiff_t adfl_batcher(ptrdiff_t count, int32_t *pairs)
{
    ptrdiff_t top = 1, length = 0;
    while (top < count) top *= 2;
    for (ptrdiff_t half = top / 2; half > 0; half /= 2) {
        ptrdiff_t start = 0, gap = half;
        for (ptrdiff_t q = top / 2;; q /= 2) {
            for (ptrdiff_t i = 0; i + gap < count; i++)
                if ((i & half) == start) {
                    if (pairs != NULL) {
                        pairs[2 * length] = (int32_t)i;
                        pairs[2 * length + 1] = (int32_t)(i + gap);
                    }
                    length++;
                }
            if (q == half) break;
            gap = q - half;
            start = half;
        }
    }
    return length;
}

/* Fill rule->networks[count]; 0 where memory is short. From the end backwards, a comparator of two rows that
 * end in the same part of the order, below, in or above what is averaged, changes nothing and is left out. */
static int adfl_build_network(const adfl_rule *rule, ptrdiff_t count)
{
    adfl_network *network = &rule->networks[count];
    const ptrdiff_t length = adfl_batcher(count, NULL);
    ptrdiff_t low, high, first = length;
    if (network->pairs != NULL) return 1;
    int32_t *pairs = malloc((size_t)(2 * length + 1) * sizeof(int32_t));
    int32_t *part = malloc((size_t)(count + 1) * sizeof(int32_t));
    if (pairs == NULL || part == NULL) {
        free(pairs);
        free(part);
        return 0;
    }
    adfl_kept(rule, count, &low, &high);
    for (ptrdiff_t i = 0; i < count; i++) part[i] = i < low ? -3 : i < high ? -2 : -1;
    adfl_batcher(count, pairs);
    for (ptrdiff_t c = length - 1; c >= 0; c--) {
        const int32_t i = pairs[2 * c], j = pairs[2 * c + 1];
        if (part[i] == part[j]) continue;
        part[i] = 2 * (int32_t)c; /* a part of its own: which of the two is where now matters */
        part[j] = 2 * (int32_t)c + 1;
        first--;
        pairs[2 * first] = i * ADFL_ROW_TILE;
        pairs[2 * first + 1] = j * ADFL_ROW_TILE;
    }
    memmove(pairs, pairs + 2 * first, (size_t)(2 * (length - first)) * sizeof(int32_t));
    free(part);
    network->length = length - first;
    network->pairs = pairs;
    return 1;
}

#endif
