"""Data files of any kind: find or download them with checksums, read them within bounds, cache what was parsed."""
