"""Tables: CSV, Parquet and NumPy files, and folders of them, as named columns.

>>> table = read_table(Path("load.csv"))
>>> table.names, table.kind("load"), table.numbers("load"), table.notes
"""

from plmu.timeseries.tables.reading import read_arrays, read_table, read_tables
from plmu.timeseries.tables.table import Table

__all__ = ["Table", "read_arrays", "read_table", "read_tables"]
