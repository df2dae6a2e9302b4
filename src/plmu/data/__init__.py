"""Data files of any kind. Experiments, text and time series share this room; it knows none of them.

`files`: find a file in the user's folder, or download it with a checksum · `reading`: its bytes, lines and rows,
unpacked within bounds · `archive`: files of the UCR archive · `cache`: what was parsed, as arrays on disk.
"""
