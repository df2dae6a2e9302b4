"""Elementary functions in C, so that a model needs no library: e^x, e^x − 1, ln(1 + x), tanh, erf and √x.

Their polynomials are minimax fits of this project, whose own errors are below 1e-8. In float32 each function is within
4 units in the last place of the exact one (`tests/exports/test_c_math.py`). NaN gives NaN.
"""

from __future__ import annotations

MATH: dict[str, str] = {
    "power": """/* e^x = 2 half (1 + q), for x from -86 to 89: the result is q. */
static float power(float x, float *half)
{
    union { uint32_t bits; float number; } two;
    const int32_t k = (int32_t)(x * 1.44269504f + (x < 0.0f ? -0.5f : 0.5f));
    /* ln 2 in two parts: the product with the first is exact. */
    const float r = (x - (float)k * 0.693359375f) + (float)k * 2.12194440e-4f;
    two.bits = (uint32_t)(k + 126) << 23;
    *half = two.number;
    return r + r * r * (0.499999934f + r * (0.166665206f + r * (0.0416683879f + r * (0.00836871541f
        + r * 0.00138145999f))));
}
""",
    "exponential": """static float exponential(float x)
{
    float half, q;
    if (!(x < 88.7f))
        return x * 3e38f; /* infinity, or NaN */
    if (x < -86.0f)
        return 0.0f; /* below 5e-38 */
    q = power(x, &half);
    return (1.0f + q) * half * 2.0f;
}
""",
    "exponential_minus_1": """static float exponential_minus_1(float x)
{
    float half, q;
    if (!(x > -17.4f && x < 17.4f))
        return exponential(x) - 1.0f;
    q = power(x, &half);
    return 2.0f * half * q + (2.0f * half - 1.0f);
}
""",
    "log_of_1_plus": """/* ln(1 + x) for x from 0 to 1 */
static float log_of_1_plus(float x)
{
    const float s = x / (2.0f + x), z = s * s;
    return 2.0f * s + s * z * (0.666664131f + z * (0.400216992f + z * (0.279991394f + z * 0.280244657f)));
}
""",
    "hyperbolic_tangent": """static float hyperbolic_tangent(float x)
{
    const float t = exponential_minus_1(x < 0.0f ? 2.0f * x : -2.0f * x), y = t / (t + 2.0f);
    return x < 0.0f ? y : -y;
}
""",
    "error_function": """static float error_function(float x)
{
    const float a = x < 0.0f ? -x : x, z = x * x;
    float y;
    if (a < 1.0f)
        return x * (1.12837917f + z * (-0.376126271f + z * (0.112836002f + z * (-0.0268544446f
            + z * (0.00518953534f + z * (-0.000802084127f + z * 0.0000788911949f))))));
    if (a > 4.0f)
        return x < 0.0f ? -1.0f : 1.0f;
    y = 1.0f - exponential(-0.000353708928f + a * (-1.12704008f + a * (-0.638225602f + a * (-0.103037436f
        + a * (0.0218053512f + a * (-0.00293961574f + a * 0.000185574893f))))));
    return x < 0.0f ? -y : y;
}
""",
    "square_root": """/* By Newton's method, from a number that has half the exponent */
static float square_root(float x)
{
    union { uint32_t bits; float number; } y;
    int i;
    if (!(x > 0.0f && x <= 3.40282347e38f))
        return x; /* 0, infinity or NaN: there are no negative ones */
    y.number = x;
    y.bits = (y.bits >> 1) + 0x1fbd1df5u;
    for (i = 0; i < 3; i++)
        y.number = 0.5f * (y.number + x / y.number);
    return y.number;
}
""",
}
