"""Data sources: find or download, verify, parse, split. One module a source."""
