"""Trained models for other programs: ONNX, torch.export and C. `plmu.export` writes them.

A folded model is lowered to a program, a list of simple operations (`lowering.py`, `builder.py`, `program.py`). Each
format is written from it: ONNX by `onnx_model.py` and the files it imports, C by `c_files.py` and those it imports.
`evaluate.py` runs a program with torch, to compare. torch.export is made from the model itself, by `torch_program.py`.
"""

from plmu.exports.accuracy import AccuracyWarning
from plmu.exports.builder import NotExportable
from plmu.exports.exporting import FORMATS, Exported, export

__all__ = ["FORMATS", "AccuracyWarning", "Exported", "NotExportable", "export"]
