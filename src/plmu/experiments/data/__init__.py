"""The data sources of the experiments, one module per source: find or download, verify, parse, split."""
