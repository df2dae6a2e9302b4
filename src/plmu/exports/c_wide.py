"""The C functions of arithmetic on vectors, for float and, as `wide_add`, for double; with e^x and ln x in double."""

from __future__ import annotations

# The body of y = f(x) for one double, with the options of torch's function as C numbers.
WIDE_FUNCTIONS: dict[str, str] = {
    "abs": "x < 0.0 ? -x : x",
    "relu": "x < 0.0 ? 0.0 : x",
    "exp": "exponential_of(x)",
    "log": "logarithm_of(x)",
    "hardtanh": "x < {min_val} ? {min_val} : (x > {max_val} ? {max_val} : x)",
}
NEEDED = {"exp": "exponential_of", "log": "logarithm_of"}  # helpers that functions call, by the function's name

_EITHER = {
    "divide": """static void {name}({type} *out, const {type} *x, const {type} *y, size_t count)
{{
    size_t i;
    for (i = 0; i < count; i++)
        out[i] = x[i] / y[i];
}}
""",
    "where": """/* x where the condition is above 0, else y, or the number `otherwise` */
static void {name}({type} *out, const {type} *condition, const {type} *x, const {type} *y, {type} otherwise,
    size_t count)
{{
    size_t i;
    for (i = 0; i < count; i++)
        out[i] = condition[i] > 0 ? x[i] : (y ? y[i] : otherwise);
}}
""",
    "begin": """/* a state, or before the first step where sequences begin */
static void {name}({type} *out, const {type} *x, const {type} *start, int started, size_t count)
{{
    size_t i;
    for (i = 0; i < count; i++)
        out[i] = started ? x[i] : start[i];
}}
""",
    "repeat": """static void {name}({type} *restrict out, const {type} *restrict x, size_t size, size_t count)
{{
    size_t i;
    for (i = 0; i < count; i++)
        out[i] = x[i % size];
}}
""",
    "transpose": """static void {name}({type} *restrict out, const {type} *restrict x, size_t rows, size_t columns)
{{
    size_t i, j;
    for (i = 0; i < rows; i++)
        for (j = 0; j < columns; j++)
            out[j * rows + i] = x[i * columns + j];
}}
""",
}
# These have a version for float among the other helpers.
_WIDE = {
    "add": """static void wide_add(double *out, const double *x, const double *y, size_t count)
{
    size_t i;
    for (i = 0; i < count; i++)
        out[i] = x[i] + y[i];
}
""",
    "multiply": """static void wide_multiply(double *out, const double *x, const double *y, size_t count)
{
    size_t i;
    for (i = 0; i < count; i++)
        out[i] = x[i] * y[i];
}
""",
    "scale": """static void wide_scale(double *out, const double *x, const float *factor, const float *offset,
    size_t count)
{
    size_t i;
    for (i = 0; i < count; i++)
        out[i] = offset ? x[i] * (double)factor[i] + (double)offset[i] : x[i] * (double)factor[i];
}
""",
    "convert": """static void wide_convert(double *restrict out, const float *restrict x, size_t count)
{
    size_t i;
    for (i = 0; i < count; i++)
        out[i] = (double)x[i];
}
""",
}
_MATH = {
    "exponential_of": """/* e^x = 2^k e^r with |r| < 0.35; the series ends below 1e-18. */
static double exponential_of(double x)
{
    double sum = 1.0, scale = 1.0, power = 2.0, r;
    int32_t k, i;
    if (!(x < 709.7))
        return x * 1e308; /* infinity, or NaN */
    if (x < -708.0)
        return 0.0;
    k = (int32_t)(x * 1.4426950408889634 + (x < 0.0 ? -0.5 : 0.5));
    /* ln 2 in two parts: the product with the first is exact. */
    r = (x - (double)k * 0.6931471803691238) - (double)k * 1.9082149292705877e-10;
    for (i = 14; i > 0; i--)
        sum = 1.0 + r * sum / (double)i;
    for (i = k < 0 ? -k : k; i > 0; i /= 2) {
        if (i % 2)
            scale *= power;
        power *= power;
    }
    return k < 0 ? sum / scale : sum * scale;
}
""",
    "logarithm_of": """/* ln x = k ln 2 + ln m for x > 0, with m from 0.7 to 1.5; the series ends below 1e-18. */
static double logarithm_of(double x)
{
    double s, z, sum = 0.0;
    int32_t k = 0, i;
    if (!(x > 0.0 && x < 1e308))
        return x - x; /* 0, infinity or NaN: an argument is positive */
    for (; x > 1.5; k++)
        x *= 0.5;
    for (; x < 0.75; k--)
        x *= 2.0;
    s = (x - 1.0) / (x + 1.0);
    z = s * s;
    for (i = 25; i > 0; i -= 2)
        sum = sum * z + 1.0 / (double)i;
    return (double)k * 0.6931471803691238 + (2.0 * s * sum + (double)k * 1.9082149292705877e-10);
}
""",
}

WIDE_HELPERS: dict[str, str] = {
    **{name: body.format(name=name, type="float") for name, body in _EITHER.items()},
    **{f"wide_{name}": body.format(name=f"wide_{name}", type="double") for name, body in _EITHER.items()},
    **{f"wide_{name}": body for name, body in _WIDE.items()},
    "convert": """static void convert(float *restrict out, const double *restrict x, size_t count)
{
    size_t i;
    for (i = 0; i < count; i++)
        out[i] = (float)x[i];
}
""",
    **_MATH,
}
