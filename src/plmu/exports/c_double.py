"""Functions of doubles in C for traced steps, without a library: logarithms, √x, the area sine, infinity and NaN."""

DOUBLE: dict[str, str] = {
    "least_of": """static double least_of(double x, double y)
{
    return x < y ? x : y;
}
""",
    "largest_of": """static double largest_of(double x, double y)
{
    return x > y ? x : y;
}
""",
    "absolute_of": """static double absolute_of(double x)
{
    return x < 0.0 ? -x : x;
}
""",
    "endless": """static double endless(void)
{
    const union { uint64_t bits; double number; } x = {0x7ff0000000000000u};
    return x.number;
}
""",
    "not_a_number": """static double not_a_number(void)
{
    const union { uint64_t bits; double number; } x = {0x7ff8000000000000u};
    return x.number;
}
""",
    "natural_log_of": """/* ln x = k ln 2 + ln m for x > 0, with m from 0.7 to 1.5; the series ends below 1e-17. */
static double natural_log_of(double x)
{
    union { uint64_t bits; double number; } m;
    double s, z, k = -1022.0;
    if (!(x > 0.0 && x < 1e308))
        return x < 0.0 ? x - x : x; /* infinity or NaN: an argument is positive */
    if (x < 1e-300) {
        x *= 1e60;
        k -= 199.31568569324174;
    }
    m.number = x;
    k += (double)(m.bits >> 52);
    m.bits = (m.bits & 0x000fffffffffffffu) | 0x3fe0000000000000u; /* from 0.5 to 1 */
    if (m.number < 0.7071067811865476) {
        m.number *= 2.0;
        k -= 1.0;
    }
    s = (m.number - 1.0) / (m.number + 1.0);
    z = s * s;
    z = z * (1.0 / 3.0 + z * (1.0 / 5.0 + z * (1.0 / 7.0 + z * (1.0 / 9.0 + z * (1.0 / 11.0 + z * (1.0 / 13.0
        + z * (1.0 / 15.0 + z * (1.0 / 17.0 + z * (1.0 / 19.0 + z * (1.0 / 21.0))))))))));
    return k * 0.6931471803691238 + (2.0 * s + (2.0 * s * z + k * 1.9082149292705877e-10));
}
""",
    "binary_log_of": """static double binary_log_of(double x)
{
    return natural_log_of(x) * 1.4426950408889634;
}
""",
    "square_root_of": """/* By Newton's method, from a number that has half the exponent */
static double square_root_of(double x)
{
    union { uint64_t bits; double number; } y;
    int i;
    if (!(x > 0.0 && x < 1e308))
        return x; /* 0, infinity or NaN: there are no negative ones */
    y.number = x;
    y.bits = (y.bits >> 1) + 0x1ff7a3bea91d9b1bu;
    for (i = 0; i < 4; i++)
        y.number = 0.5 * (y.number + x / y.number);
    return y.number;
}
""",
    "area_sine_of": """/* ln(x + √(x² + 1)), by its series where that would lose digits */
static double area_sine_of(double x)
{
    const double a = x < 0.0 ? -x : x, z = x * x;
    double y;
    if (a < 0.05)
        return x * (1.0 - z * (1.0 / 6.0 - z * (3.0 / 40.0 - z * (15.0 / 336.0 - z * (105.0 / 3456.0
            - z * (945.0 / 42240.0 - z * (10395.0 / 599040.0)))))));
    y = natural_log_of(a + square_root_of(z + 1.0));
    return x < 0.0 ? -y : y;
}
""",
}
