"""Tables: CSV, Parquet and NumPy files, and folders of them, as named columns.

>>> table = read_table(Path("load.csv"))
>>> table.names, table.kind("load"), table.numbers("load"), table.notes
"""

from plmu.timeseries.tables.reading import SUFFIXES, nested_files, read_arrays, read_table, read_tables, table_files
from plmu.timeseries.tables.table import Table

__all__ = ["SUFFIXES", "Table", "nested_files", "read_arrays", "read_table", "read_tables", "table_files"]
