"""Trained models for other programs: ONNX, torch.export and C. `plmu.export` writes them.

A folded model is lowered to a program, a list of simple operations (`lowering.py`, `program.py`). Each format is
written from it: `onnx_model.py`, and `c_code.py` with `c_memory.py`, `c_helpers.py` and `c_files.py`. `evaluate.py`
runs a program with torch, to compare. torch.export is made of the model itself, by `torch_program.py`.
"""

from plmu.exports.exporting import FORMATS, Exported, export
from plmu.exports.lowering import NotExportable

__all__ = ["FORMATS", "Exported", "NotExportable", "export"]
