"""Data files of any kind. Experiments, text and time series share this room; it imports none of them.

`files`: find a file in the user's folder, or download it with a checksum · `reading`: its bytes, lines and rows,
unpacked within bounds · `table_files`: the files of tables in a folder · `cache`: parsed data as arrays on disk.
"""
