"""The C functions that a step calls. Only those that a model uses are written, with those that these call."""

from __future__ import annotations

from plmu.exports.c_double import DOUBLE
from plmu.exports.c_math import MATH
from plmu.exports.c_products import PRODUCTS
from plmu.exports.c_wide import WIDE_HELPERS

# The body of y = f(x) for one number, in x, with the options of torch's function as C numbers.
FUNCTIONS: dict[str, str] = {
    "relu": "x < 0.0f ? 0.0f : x",
    "relu6": "x < 0.0f ? 0.0f : (x > 6.0f ? 6.0f : x)",
    "leaky_relu": "x > 0.0f ? x : {negative_slope} * x",
    "elu": "x > 0.0f ? x : {alpha} * exponential_minus_1(x)",
    "celu": "x > 0.0f ? x : {alpha} * exponential_minus_1(x / {alpha})",
    "selu": "1.05070098f * (x > 0.0f ? x : 1.67326324f * exponential_minus_1(x))",
    "gelu": "0.5f * x * (1.0f + error_function(x * 0.707106781f))",
    "gelu_tanh": "0.5f * x * (1.0f + hyperbolic_tangent(0.797884561f * (x + 0.044715f * x * x * x)))",
    "silu": "x / (1.0f + exponential(-x))",
    "mish": "x * hyperbolic_tangent(softplus(x))",
    "sigmoid": "1.0f / (1.0f + exponential(-x))",
    "tanh": "hyperbolic_tangent(x)",
    "softplus": "{beta} * x > {threshold} ? x : softplus({beta} * x) / {beta}",
    "softsign": "x / (1.0f + absolute(x))",
    "hardtanh": "x < {min_val} ? {min_val} : (x > {max_val} ? {max_val} : x)",
    "hardsigmoid": "x <= -3.0f ? 0.0f : (x >= 3.0f ? 1.0f : x / 6.0f + 0.5f)",
    "hardswish": "x <= -3.0f ? 0.0f * x : (x >= 3.0f ? x : x * (x + 3.0f) / 6.0f)",
    "logsigmoid": "-softplus(-x)",
    "tanhshrink": "x - hyperbolic_tangent(x)",
    "abs": "x < 0.0f ? -x : x",
    "log": "(float)logarithm_of((double)x)",
}
DEFAULTS: dict[str, dict[str, float]] = {
    "leaky_relu": {"negative_slope": 0.01},
    "elu": {"alpha": 1.0},
    "celu": {"alpha": 1.0},
    "softplus": {"beta": 1.0, "threshold": 20.0},
    "hardtanh": {"min_val": -1.0, "max_val": 1.0},
}

# Helpers for float values, such as `push`, and for double values, `wide_push`.
_EITHER = {
    "push": """static void {name}({type} *restrict out, const {type} *restrict rows, const {type} *restrict row,
    const float *started, size_t size, size_t count)
{{
    const size_t kept = started[0] > 0.0f ? count - size : 0;
    size_t i;
    for (i = 0; i < kept; i++)
        out[i] = rows[i + size];
    for (i = kept; i < count; i++)
        out[i] = row[(i - kept) % size];
}}
""",
    "changes": """static void {name}(float *restrict out, const {type} *restrict x, const {type} *restrict level,
    const float *restrict factor, size_t count, size_t size)
{{
    size_t i;
    for (i = 0; i < count; i++)
        out[i] = (float)((x[i] - level[i % size]) * factor[i % size]);
}}
""",
    "lift": """static void {name}({type} *restrict out, const float *restrict x, const {type} *restrict level,
    const float *restrict factor, size_t count, size_t size)
{{
    size_t i;
    for (i = 0; i < count; i++)
        out[i] = level[i % size] + ({type})x[i] * factor[i % size];
}}
""",
    "product": """static void {name}({type} *restrict out, const float *restrict weight, const {type} *restrict x,
    size_t rows, size_t count, size_t stride)
{{
    size_t i, j;
    for (i = 0; i < rows; i++)
        for (j = 0; j < count; j++)
            out[i] += weight[i * stride + j] * x[j];
}}
""",
}

HELPERS: dict[str, str] = {
    **MATH,
    **PRODUCTS,
    **WIDE_HELPERS,
    **DOUBLE,
    **{name: body.format(name=name, type="float") for name, body in _EITHER.items()},
    **{f"wide_{name}": body.format(name=f"wide_{name}", type="double") for name, body in _EITHER.items()},
    "phase": """static void phase(float *out, const double *position, int32_t first, int32_t season)
{
    const int32_t after = (int32_t)((position[1] != 0.0 ? (int64_t)position[0] : first) % season);
    out[0] = (float)(after < 0 ? after + season : after);
    out[1] = position[1] > 0.0 ? 1.0f : 0.0f;
}
""",
    "follow": """static void follow(double *out, const double *position, double first, double limit)
{
    const double count = position[1] > 0.0 ? position[1] + 1.0 : 1.0;
    out[0] = (position[1] != 0.0 ? position[0] : first) + 1.0;
    out[1] = count < limit ? count : limit;
}
""",
    **{
        name: f"""static void {name}(double *out, const double *from, size_t count)
{{
    size_t i;
    for (i = 0; i < count; i++)
        out[i] = from[i];
}}
"""
        for name in ("wide_set", "wide_keep")
    },
    "wide_clear": """static void wide_clear(double *out, size_t count)
{
    size_t i;
    for (i = 0; i < count; i++)
        out[i] = 0.0;
}
""",
    "absolute": """static float absolute(float x)
{
    return x < 0.0f ? -x : x;
}
""",
    "softplus": """/* ln(1 + e^x), for large x too */
static float softplus(float x)
{
    return (x < 0.0f ? 0.0f : x) + log_of_1_plus(exponential(-absolute(x)));
}
""",
    "set": """static void set(float *out, const float *from, size_t count)
{
    size_t i;
    for (i = 0; i < count; i++)
        out[i] = from[i];
}
""",
    "keep": """/* The next state. In silence it decays to subnormal numbers, with which many processors are slow. */
static void keep(float *state, const float *from, size_t count)
{
    size_t i;
    for (i = 0; i < count; i++)
        state[i] = absolute(from[i]) < 1e-30f ? 0.0f : from[i];
}
""",
    "clear": """static void clear(float *out, size_t count)
{
    size_t i;
    for (i = 0; i < count; i++)
        out[i] = 0.0f;
}
""",
    "add": """static void add(float *out, const float *x, const float *y, size_t count)
{
    size_t i;
    for (i = 0; i < count; i++)
        out[i] = x[i] + y[i];
}
""",
    "multiply": """static void multiply(float *out, const float *x, const float *y, size_t count)
{
    size_t i;
    for (i = 0; i < count; i++)
        out[i] = x[i] * y[i];
}
""",
    "scale": """static void scale(float *out, const float *x, const float *factor, const float *offset, size_t count)
{
    size_t i;
    for (i = 0; i < count; i++)
        out[i] = offset ? x[i] * factor[i] + offset[i] : x[i] * factor[i];
}
""",
    "mix": """/* x + sigmoid(g) (y - x) */
static void mix(float *out, const float *x, const float *y, const float *g, size_t count)
{
    size_t i;
    for (i = 0; i < count; i++)
        out[i] = x[i] + (y[i] - x[i]) / (1.0f + exponential(-g[i]));
}
""",
    "normalize": """/* Over each `features` numbers in a row. */
static void normalize(float *out, const float *x, const float *weight, const float *bias, size_t count,
    size_t features, float eps, int centred)
{
    size_t i, j;
    for (i = 0; i < count; i += features) {
        float mean = 0.0f, square = 0.0f, factor;
        if (centred) {
            for (j = 0; j < features; j++)
                mean += x[i + j];
            mean /= (float)features;
        }
        for (j = 0; j < features; j++)
            square += (x[i + j] - mean) * (x[i + j] - mean);
        factor = 1.0f / square_root(square / (float)features + eps);
        for (j = 0; j < features; j++) {
            const float value = (x[i + j] - mean) * factor;
            out[i + j] = (weight ? value * weight[j] : value) + (bias ? bias[j] : 0.0f);
        }
    }
}
""",
    "softmax": """/* softmax, or its logarithm */
static void softmax(float *out, const float *x, size_t count, int logarithm)
{
    float largest = x[0], sum = 0.0f, log_sum = 0.0f, fraction;
    size_t i;
    for (i = 1; i < count; i++)
        largest = x[i] > largest ? x[i] : largest;
    for (i = 0; i < count; i++)
        sum += exponential(x[i] - largest);
    for (fraction = sum; fraction >= 2.0f; fraction *= 0.5f) /* at least 1 and at most count */
        log_sum += 0.693147181f;
    log_sum += log_of_1_plus(fraction - 1.0f);
    for (i = 0; i < count; i++)
        out[i] = logarithm ? x[i] - largest - log_sum : exponential(x[i] - largest) / sum;
}
""",
    "glu": """static void glu(float *out, const float *x, size_t count)
{
    size_t i;
    for (i = 0; i < count; i++)
        out[i] = x[i] / (1.0f + exponential(-x[count + i]));
}
""",
    "remember": """/* m (order, channels) with u below it, times matrix (order, columns, groups) */
static void remember(float *restrict out, const float *restrict m, const float *restrict u,
    const float *restrict matrix, size_t order, size_t columns, size_t groups, size_t width)
{
    const size_t channels = groups * width;
    size_t i, j, g, c;
    for (i = 0; i < order; i++)
        for (j = 0; j < columns; j++) {
            const float *from = j < order ? m + j * channels : u + (j - order) * channels;
            const float *a = matrix + (i * columns + j) * groups;
            float *to = out + i * channels;
            if (width == 1)
                for (g = 0; g < groups; g++)
                    to[g] += a[g] * from[g];
            else
                for (g = 0; g < groups; g++)
                    for (c = g * width; c < (g + 1) * width; c++)
                        to[c] += a[g] * from[c];
        }
}
""",
    "remain": """/* Adds m (order, channels) where the matrix of a group is near the identity. */
static void remain(float *restrict out, const float *restrict m, const float *restrict added, size_t order,
    size_t channels)
{
    size_t i, c;
    for (i = 0; i < order; i++)
        for (c = 0; c < channels; c++)
            out[i * channels + c] += added[c] * m[i * channels + c];
}
""",
    "advance": """/* matrix (order, order + 1) times x */
static void advance(float *restrict out, const float *restrict matrix, const float *restrict x, size_t order)
{
    size_t i, j;
    for (i = 0; i < order; i++) {
        const float *row = matrix + i * (order + 1);
        float sum = 0.0f;
        for (j = 0; j <= order; j++)
            sum += row[j] * x[j];
        out[i] = sum;
    }
}
""",
    "elapse": """/* m (order, channels) after an interval with input u: a move for each of its bits, then Taylor */
static void elapse(float *restrict out, const float *restrict m, const float *restrict u, float interval,
    const float *restrict moves, const float *restrict rate, float *restrict now, size_t order, size_t channels,
    size_t bits, size_t near, size_t terms, float unit, float longest)
{
    float *term = now + order + 1, *next = term + order + 1;
    size_t c, i, k;
    if (!(interval >= 0.0f && interval <= 3.40282347e38f)) {
        interval = 3e38f * (10.0f + interval * interval);
        interval -= interval; /* NaN */
    }
    for (c = 0; c < channels; c++) {
        float rest = interval > longest ? longest : interval, bound = longest + unit;
        for (i = 0; i < order; i++)
            now[i] = m[i * channels + c];
        now[order] = u[c];
        for (k = bits; k-- > 0;) {
            bound *= 0.5f;
            if (rest >= bound) {
                rest -= bound;
                advance(next, moves + k * order * (order + 1), now, order);
                for (i = 0; i < order; i++)
                    now[i] = k < near ? now[i] + next[i] : next[i];
            }
        }
        for (i = 0; i <= order; i++)
            term[i] = now[i];
        for (k = 1; k <= terms; k++) {
            advance(next, rate, term, order);
            for (i = 0; i < order; i++) {
                term[i] = next[i] * rest / (float)k;
                now[i] += term[i];
            }
            term[order] = 0.0f;
        }
        for (i = 0; i < order; i++)
            out[i * channels + c] = now[i];
    }
}
""",
    "taps": """static void taps(float *restrict out, const float *restrict x, const float *restrict weight,
    size_t steps, size_t features)
{
    size_t i, j;
    for (i = 0; i < steps; i++)
        for (j = 0; j < features; j++)
            out[j] += weight[i * features + j] * x[i * features + j];
}
""",
    "choose": """static void choose(float *restrict out, const float *restrict weights, const float *restrict m,
    size_t order, size_t heads, size_t width)
{
    size_t i, h, c;
    for (i = 0; i < order; i++)
        for (h = 0; h < heads; h++)
            for (c = 0; c < width; c++)
                out[h * width + c] += weights[i * heads + h] * m[(i * heads + h) * width + c];
}
""",
    "count": """static void count(double *out, const float *x, const double *counts, const float *thresholds,
    size_t rows, size_t features, size_t degrees)
{
    const size_t size = rows * features, last = degrees * size;
    const double steps = counts[last];
    size_t i, k;
    for (i = 0; i < size; i++) {
        const float number = x[i % features];
        double above = number > thresholds[i] ? 1.0 : (number == number ? 0.0 : (double)number); /* NaN stays */
        for (k = 0; k < degrees; k++) {
            out[k * size + i] = counts[k * size + i] + above;
            above *= steps + 0.5;
        }
    }
    out[last] = steps + 1.0;
}
""",
    "shares": """static void shares(float *out, const double *counts, const float *legendre,
    size_t size, size_t degrees)
{
    const double steps = counts[degrees * size];
    size_t i, j, k;
    for (i = 0; i < size; i++)
        for (k = 0; k < degrees; k++) {
            double scale = 1.0 / steps, sum = 0.0;
            for (j = 0; j <= k; j++) {
                sum += (double)legendre[k * degrees + j] * counts[j * size + i] * scale;
                scale /= steps;
            }
            out[k * size + i] = (float)sum;
        }
}
""",
    "fill": """static void fill(float *out, const float *x, const float *held, size_t count)
{
    size_t i;
    for (i = 0; i < count; i++)
        out[i] = x[i] == x[i] ? x[i] : (held ? held[i] : 0.0f); /* where it is NaN */
}
""",
    "attend": """static void attend(float *restrict out, const float *restrict query, const float *restrict keys,
    const float *restrict values, const float *restrict seen, const float *restrict cosine,
    const float *restrict sine, float *restrict scores, size_t steps, size_t heads, size_t half)
{
    const size_t width = 2 * heads * half;
    const float factor = 1.0f / square_root((float)(2 * half));
    size_t h, t, j;
    for (h = 0; h < heads; h++) {
        const float *q = query + 2 * h * half;
        float largest = 0.0f, sum = 0.0f;
        int found = 0;
        for (t = 0; t < steps; t++) {
            const float *k = keys + t * width + 2 * h * half;
            float score = 0.0f;
            for (j = 0; j < half; j++) {
                const float c = cosine[t * half + j], s = sine[t * half + j];
                score += q[j] * (k[j] * c - k[half + j] * s) + q[half + j] * (k[j] * s + k[half + j] * c);
            }
            scores[t] = score * factor;
            if (seen[t] > 0.0f && (!found || scores[t] > largest)) {
                largest = scores[t];
                found = 1;
            }
        }
        for (t = 0; t < steps; t++) {
            scores[t] = seen[t] > 0.0f ? exponential(scores[t] - largest) : 0.0f;
            sum += scores[t];
        }
        for (j = 0; j < 2 * half; j++)
            out[2 * h * half + j] = 0.0f;
        for (t = 0; t < steps; t++)
            for (j = 0; j < 2 * half; j++)
                out[2 * h * half + j] += scores[t] / sum * values[t * width + 2 * h * half + j];
    }
}
""",
}
