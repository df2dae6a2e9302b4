"""Linear systems in float64: `LinearSystem`, `DelayNetwork` (paper §3.1), and constants derived from them, cached."""
