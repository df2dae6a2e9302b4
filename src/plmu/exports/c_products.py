"""Products of weights in C: in float32, with int8 weights, and in fixed point."""

from __future__ import annotations

# Weights are stored by columns, so that a compiler can vectorise the sum without reordering it; matrices of few rows
# are stored by rows.
_COLUMNS = """static void {name}({number} *restrict out, const {type} *restrict weight, const {number} *restrict x,
    {more}size_t rows, size_t count)
{{
    const size_t whole = count - count % 4;
    size_t i, j;
    for (j = 0; j < whole; j += 4) {{
        const {type} *w = weight + j * rows;
        const {number} a = {x[0]}, b = {x[1]}, c = {x[2]}, d = {x[3]};
        for (i = 0; i < rows; i++)
            out[i] += ({cast}w[i] * a + {cast}w[rows + i] * b)
                + ({cast}w[2 * rows + i] * c + {cast}w[3 * rows + i] * d);
    }}
    for (j = whole; j < count; j++) {{
        const {number} a = {x[0]};
        for (i = 0; i < rows; i++)
            out[i] += {cast}weight[j * rows + i] * a;
    }}
}}
"""
_ROWS = """static void {name}(float *restrict out, const {type} *restrict weight, const float *restrict x,
    {more}size_t rows, size_t count, size_t stride)
{{
    const size_t whole = count - count % 8;
    size_t i, j, k;
    for (i = 0; i < rows; i++) {{
        const {type} *w = weight + i * stride;
        float sum[8] = {{0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f}};
        for (j = 0; j < whole; j += 8)
            for (k = 0; k < 8; k++)
                sum[k] += {cast}w[j + k] * {x[4]};
        for (j = whole; j < count; j++)
            sum[j - whole] += {cast}w[j] * {x[0]};
        out[i] += ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
    }}
}}
"""
_PLACES = ("j", "j + 1", "j + 2", "j + 3", "j + k")
_FLOAT = {"type": "float", "cast": "", "more": "", "x": [f"x[{place}]" for place in _PLACES]}
_INT8 = {
    "type": "int8_t",
    "cast": "(float)",
    "more": "const float *restrict factor, ",
    "x": [f"(x[{place}] * factor[{place}])" for place in _PLACES],
}

PRODUCTS: dict[str, str] = {
    "columns": _COLUMNS.format(name="columns", number="float", **_FLOAT),
    "columns8": _COLUMNS.format(name="columns8", number="float", **_INT8),
    "wide_columns": _COLUMNS.format(name="wide_columns", number="double", **_FLOAT),
    "rows": _ROWS.format(name="rows", **_FLOAT),
    "rows8": _ROWS.format(name="rows8", **_INT8),
    "largest": """/* The largest |x factor| and `known`; NaN if x is not finite. */
static float largest(float known, const float *x, const float *factor, size_t count)
{
    float strange = 0.0f;
    size_t i;
    for (i = 0; i < count; i++) {
        const float value = absolute(x[i] * factor[i]);
        known = value > known ? value : known;
        strange += value - value;
    }
    return known + strange;
}
""",
    "whole": """/* x factor as integers in this unit. */
static void whole(int16_t *restrict out, const float *restrict x, const float *restrict factor, float unit,
    size_t count)
{
    const float inverse = unit > 0.0f ? 1.0f / unit : 0.0f;
    size_t i;
    for (i = 0; i < count; i++) {
        const float value = x[i] * factor[i] * inverse;
        /* 0 for NaN: unit is NaN too */
        out[i] = absolute(value) < 32767.4f ? (int16_t)(value + (value < 0.0f ? -0.5f : 0.5f)) : (int16_t)0;
    }
}
""",
    "fixed8": """/* Sums of integers, which cannot overflow. */
static void fixed8(float *restrict out, const int8_t *restrict weight, const int16_t *restrict x, float unit,
    const float *restrict factor, const float *restrict bias, size_t rows, size_t count)
{
    const size_t even = count - count % 4;
    size_t i, j;
    for (i = 0; i < rows; i++) {
        const int8_t *w = weight + i * count;
        int32_t sum = 0;
        for (j = 0; j < even; j += 4)
            sum += ((int32_t)w[j] * x[j] + (int32_t)w[j + 1] * x[j + 1])
                + ((int32_t)w[j + 2] * x[j + 2] + (int32_t)w[j + 3] * x[j + 3]);
        for (j = even; j < count; j++)
            sum += (int32_t)w[j] * x[j];
        out[i] = (float)sum * (unit * factor[i]) + (bias ? bias[i] : 0.0f);
    }
}
""",
    "row8": """static void row8(float *restrict out, const int8_t *restrict row, float all,
    const float *restrict factor, size_t count)
{
    size_t i;
    for (i = 0; i < count; i++)
        out[i] = all * (float)row[i] * factor[i];
}
""",
}
