"""The data sources of the experiments, one module a source: find or download, verify, parse, split."""
