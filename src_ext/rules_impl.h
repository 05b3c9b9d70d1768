/* Bodies of the rules by which a client combines what it hears; included by blocks_impl.h once per
 * vector width, so VEC, LANES, LOAD, STORE and SELECT are those of that file.
 *
 * A pool is `count` rows of length `size` at theta + index[j] * stride; the client's own row is the
 * first. Coordinate rules look at one coordinate after the other, vector rules at whole rows. */

#define HEARD(j) (theta + index[j] * stride)

/* Order two rows of a tile coordinate by coordinate; NaN may land in either and is caught by the caller.
 * Written with masks: compilers turn a choice between two doubles into a branch, which data in no order
 * mispredict half of the time. */
ADFL_TARGET ADFL_INLINE void ADFL_NAME(compare)(double *low, double *high)
{
    UNROLL for (int k = 0; k < ADFL_ROW_TILE; k += LANES) {
        const VEC a = LOAD(low + k), b = LOAD(high + k);
        STORE(low + k, SELECT(a < b, a, b));
        STORE(high + k, SELECT(a < b, b, a));
    }
}

/* Mean of the rows from `low` to `high` in the order of each coordinate, with `own` besides unless it
 * is NULL. The median is the mean of the middle row or the two middle rows. A network of comparators
 * runs over the rows of a tile of coordinates: min/max on contiguous memory whatever their number. */
ADFL_TARGET static void ADFL_NAME(middle_mean)(
    const double *theta, ptrdiff_t stride, ptrdiff_t size, const int64_t *index, ptrdiff_t count,
    ptrdiff_t low, ptrdiff_t high, const double *own, const adfl_network *network, double *out, double *tile)
{
    const double share = 1.0 / (double)(high - low + (own != NULL));
    for (ptrdiff_t k = 0; k < size; k += ADFL_ROW_TILE) {
        const ptrdiff_t width = size - k < ADFL_ROW_TILE ? size - k : ADFL_ROW_TILE;
        double total[ADFL_ROW_TILE] = {0};
        for (ptrdiff_t j = 0; j < count; j++) {
            if (width == ADFL_ROW_TILE)
                memcpy(tile + j * ADFL_ROW_TILE, HEARD(j) + k, ADFL_ROW_TILE * sizeof(double));
            else
                for (ptrdiff_t i = 0; i < ADFL_ROW_TILE; i++)
                    tile[j * ADFL_ROW_TILE + i] = i < width ? HEARD(j)[k + i] : 0.0;
        }
        for (ptrdiff_t c = 0; c < network->length; c++)
            ADFL_NAME(compare)(tile + network->pairs[2 * c], tile + network->pairs[2 * c + 1]);
        for (ptrdiff_t j = low; j < high; j++)
            UNROLL for (int i = 0; i < ADFL_ROW_TILE; i++) total[i] += tile[j * ADFL_ROW_TILE + i];
        for (ptrdiff_t i = 0; i < width; i++) out[k + i] = share * (own != NULL ? own[k + i] + total[i] : total[i]);
    }
}

ADFL_TARGET ADFL_INLINE double ADFL_NAME(distance2)(const double *a, const double *b, ptrdiff_t size)
{
    VEC sum = (VEC){0};
    ptrdiff_t k = 0;
    for (; k + LANES <= size; k += LANES) {
        const VEC gap = LOAD(a + k) - LOAD(b + k);
        sum += gap * gap;
    }
    double total = ADFL_NAME(lanes_sum)(sum);
    for (; k < size; k++) total += (a[k] - b[k]) * (a[k] - b[k]);
    return total;
}

/* out = sum_j weight[j] row_j / sum_j weight[j] */
ADFL_TARGET ADFL_INLINE void ADFL_NAME(weighted_mean)(
    const double *theta, ptrdiff_t stride, ptrdiff_t size, const int64_t *index, const double *weight,
    ptrdiff_t count, double *out)
{
    double total = 0.0;
    for (ptrdiff_t k = 0; k < size; k++) out[k] = 0.0;
    for (ptrdiff_t j = 0; j < count; j++) {
        const double *row = HEARD(j), w = weight[j];
        if (w == 0.0) continue;
        total += w;
        for (ptrdiff_t k = 0; k < size; k++) out[k] += w * row[k];
    }
    for (ptrdiff_t k = 0; k < size; k++) out[k] /= total;
}

/* Krum over the rows with alive[i]: the least sum of squared distances to the nearest others. */
ADFL_TARGET static ptrdiff_t ADFL_NAME(krum_pick)(
    const double *distances, const double *alive, ptrdiff_t count, ptrdiff_t left, ptrdiff_t b, double *sorted)
{
    ptrdiff_t best = 0, near = left - b - 2;
    double least = INFINITY;
    if (near < 1) near = 1;
    if (near > left - 1) near = left - 1;
    for (ptrdiff_t i = 0; i < count; i++) {
        ptrdiff_t others = 0;
        double score = 0.0;
        if (alive[i] == 0.0) continue;
        for (ptrdiff_t j = 0; j < count; j++)
            if (j != i && alive[j] != 0.0) sorted[others++] = distances[i * count + j];
        adfl_sort(sorted, sorted, others);
        for (ptrdiff_t j = 0; j < near; j++) score += sorted[j];
        if (score < least) {
            least = score;
            best = i;
        }
    }
    return best;
}

/* Krum (the row picked first), and Bulyan (count - 2b picks, then their trimmed mean). */
ADFL_TARGET static void ADFL_NAME(krum)(
    const adfl_rule *rule, const double *theta, ptrdiff_t stride, ptrdiff_t size, const int64_t *index,
    ptrdiff_t count, double *out, double *work)
{
    double *tile = work, *alive = work + count * ADFL_ROW_TILE, *sorted = alive + count;
    int64_t *picked = (int64_t *)(sorted + count);
    double *distances = sorted + 2 * count;
    for (ptrdiff_t i = 0; i < count; i++) {
        alive[i] = 1.0;
        distances[i * count + i] = 0.0;
        for (ptrdiff_t j = 0; j < i; j++)
            distances[i * count + j] = distances[j * count + i] = ADFL_NAME(distance2)(HEARD(i), HEARD(j), size);
    }
    const ptrdiff_t b = rule->count;
    ptrdiff_t wanted = rule->kind == ADFL_BULYAN ? count - 2 * b : 1, low, high;
    if (wanted < 1) wanted = 1;
    for (ptrdiff_t s = 0; s < wanted; s++) {
        const ptrdiff_t best = ADFL_NAME(krum_pick)(distances, alive, count, count - s, b, sorted);
        picked[s] = index[best];
        alive[best] = 0.0;
    }
    adfl_kept(rule, wanted, &low, &high);
    ADFL_NAME(middle_mean)(theta, stride, size, picked, wanted, low, high, NULL, &rule->networks[wanted], out, tile);
}

/* The radius of clipping from the neighbours' distances; see adfl_rule. */
ADFL_TARGET static double ADFL_NAME(radius)(
    const adfl_rule *rule, const double *distance, const double *weight, const unsigned char *bad,
    ptrdiff_t count, double *sorted, double *mass)
{
    double kept = 0.0, lost = 0.0, squares = 0.0;
    if (rule->kind == ADFL_CLIP) return rule->value;
    if (rule->kind == ADFL_CLIP_KNOWN) {
        for (ptrdiff_t j = 0; j < count; j++) {
            if (bad[j]) lost += weight[j];
            else squares += weight[j] * distance[j] * distance[j];
        }
        return lost > 0.0 ? sqrt(squares / lost) : INFINITY;
    }
    for (ptrdiff_t j = 0; j < count; j++) {
        sorted[j] = distance[j];
        mass[j] = weight[j];
    }
    adfl_sort(sorted, mass, count);
    if (rule->kind == ADFL_CLIP_SECOND) return sorted[count > 2 ? count - 2 : count - 1];
    if (rule->value <= 0.0) return INFINITY;
    for (ptrdiff_t j = 0; j < count; j++) lost += mass[j];
    for (ptrdiff_t j = 0; j < count; j++) {
        kept += mass[j];
        if (kept > lost - rule->value + 1e-12) break; /* weights that should add up exactly do not quite */
        squares += mass[j] * sorted[j] * sorted[j];
    }
    return sqrt(squares / rule->value);
}

ADFL_TARGET static void ADFL_NAME(clip)(
    const adfl_rule *rule, const double *theta, ptrdiff_t stride, ptrdiff_t size, const int64_t *index,
    const double *weight, const unsigned char *bad, ptrdiff_t count, double *out, double *work)
{
    double *distance = work;
    const double *own = HEARD(0);
    for (ptrdiff_t j = 0; j < count; j++) distance[j] = sqrt(ADFL_NAME(distance2)(HEARD(j), own, size));
    const double most = ADFL_NAME(radius)(rule, distance, weight, bad, count, work + count, work + 2 * count);
    memcpy(out, own, (size_t)size * sizeof(double));
    for (ptrdiff_t j = 1; j < count; j++) {
        const double *row = HEARD(j);
        const double scale = weight[j] * (distance[j] > most ? most / distance[j] : 1.0);
        for (ptrdiff_t k = 0; k < size; k++) out[k] += scale * (row[k] - own[k]);
    }
}

/* Weiszfeld's iteration from the weighted mean; no distance counts as smaller than rule->value. */
ADFL_TARGET static void ADFL_NAME(geometric_median)(
    const adfl_rule *rule, const double *theta, ptrdiff_t stride, ptrdiff_t size, const int64_t *index,
    const double *weight, ptrdiff_t count, double *out, double *work)
{
    ADFL_NAME(weighted_mean)(theta, stride, size, index, weight, count, out);
    for (ptrdiff_t t = 0; t < rule->count; t++) {
        for (ptrdiff_t j = 0; j < count; j++) {
            const double far = sqrt(ADFL_NAME(distance2)(HEARD(j), out, size));
            work[j] = weight[j] / (far < rule->value ? rule->value : far);
        }
        ADFL_NAME(weighted_mean)(theta, stride, size, index, work, count, out);
    }
}

/* Drop the b neighbours farthest from the client (NNA), or one after the other those farthest from
 * the weighted mean of what is left (IOS), and average the rest. The client itself stays. */
ADFL_TARGET static void ADFL_NAME(prune)(
    const adfl_rule *rule, const double *theta, ptrdiff_t stride, ptrdiff_t size, const int64_t *index,
    const double *weight, ptrdiff_t count, double *out, double *work)
{
    const int about_mean = rule->kind == ADFL_IOS;
    double *distance = work, *kept = work + count;
    for (ptrdiff_t j = 0; j < count; j++) {
        kept[j] = weight[j];
        distance[j] = about_mean ? 0.0 : ADFL_NAME(distance2)(HEARD(j), HEARD(0), size);
    }
    for (ptrdiff_t t = 0; t < rule->count && t < count - 1; t++) {
        ptrdiff_t worst = 0;
        if (about_mean) ADFL_NAME(weighted_mean)(theta, stride, size, index, kept, count, out);
        for (ptrdiff_t j = 1; j < count; j++) {
            if (kept[j] == 0.0) continue;
            if (about_mean) distance[j] = ADFL_NAME(distance2)(HEARD(j), out, size);
            if (worst == 0 || distance[j] > distance[worst]) worst = j;
        }
        kept[worst] = 0.0;
    }
    ADFL_NAME(weighted_mean)(theta, stride, size, index, kept, count, out);
}

ADFL_TARGET static void ADFL_NAME(screen)(
    const adfl_rule *rule, const double *theta, ptrdiff_t runs, ptrdiff_t run, const int64_t *index,
    const double *weight, const unsigned char *bad, ptrdiff_t count, double *out, double *work)
{
    const ptrdiff_t stride = runs * run, others = count - 1;
    ptrdiff_t low, high;
    switch (rule->kind) {
    case ADFL_MEDIAN:
        adfl_kept(rule, count, &low, &high);
        ADFL_NAME(middle_mean)(theta, stride, stride, index, count, low, high, NULL, &rule->networks[count], out, work);
        return;
    case ADFL_TRIMMED:
        adfl_kept(rule, others, &low, &high);
        ADFL_NAME(middle_mean)(theta, stride, stride, index + 1, others, low, high, HEARD(0),
                               &rule->networks[others], out, work);
        return;
    }
    for (ptrdiff_t r = 0; r < runs; r++, theta += run, out += run) {
        switch (rule->kind) {
        case ADFL_KRUM:
        case ADFL_BULYAN:
            ADFL_NAME(krum)(rule, theta, stride, run, index, count, out, work);
            break;
        case ADFL_GEOMETRIC:
            ADFL_NAME(geometric_median)(rule, theta, stride, run, index, weight, count, out, work);
            break;
        case ADFL_IOS:
        case ADFL_NNA:
            ADFL_NAME(prune)(rule, theta, stride, run, index, weight, count, out, work);
            break;
        default:
            ADFL_NAME(clip)(rule, theta, stride, run, index, weight, bad, count, out, work);
        }
    }
}

#undef HEARD
