"""Labelled series of one's own: every way to write them, and what is done with files that are at fault."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from labelled_files import load, refused

from plmu.errors import DataError
from plmu.timeseries import labelled_files
from plmu.timeseries.labelled import LabelledConfig
from plmu.timeseries.labelled_columns import Format

LONG = """id,t,x,y,label
a,0,1,5,up
a,1,2,6,up
b,1,4,8,down
b,0,3,7,down
b,2,5,9,down
"""


def test_many_rows_a_series(tmp_path: Path) -> None:
    found = load(tmp_path / "long.csv", LONG)
    assert found.names == ["a", "b"]
    assert found.labels == ["up", "down"]
    assert [one.tolist() for one in found.series] == [[[1, 5], [2, 6]], [[3, 7], [4, 8], [5, 9]]]
    assert found.format == Format("rows", "id", "label", "t", ("x", "y"))
    assert any("in the order of column 't'" in note for note in found.notes)
    one = load(tmp_path / "long.csv", values=("y",), label="label", id="id", time="t")
    assert one.series[1].tolist() == [[7], [8], [9]]


def test_columns_that_do_not_tell_series_apart_are_not_taken_for_ids(tmp_path: Path) -> None:
    rows = "sample,recording,x,y,label\n0,1,1,5.5,up\n1,1,2,6.5,up\n0,2,3,7,down\n1,2,4,8,down\n"
    form = load(tmp_path / "f.csv", rows).format
    assert (form.id, form.time, form.values) == ("recording", "sample", ("x", "y"))
    rows = "name,s1,s2,s3,class\nann,1,2,3,A\nann,4,5,6,B\nbob,6,7,8,A\nbob,6,7,8,B\n"
    assert load(tmp_path / "g.csv", rows).format.layout == "wide"


def test_one_series_a_row(tmp_path: Path) -> None:
    found = load(tmp_path / "wide.csv", "name,s1,s2,s3,class\nu,1,2,3,A\nv,4,5,,B\nw,6,,8,A\n")
    assert (found.names, found.labels) == (["u", "v", "w"], ["A", "B", "A"])
    assert [one[:, 0].tolist() for one in found.series] == [[1, 2, 3], [4, 5], [6, 7, 8]]
    held = load(tmp_path / "wide.csv", missing="hold")
    assert held.series[2][:, 0].tolist() == [6, 6, 8]
    assert "step 2" in refused(tmp_path / "wide.csv", missing="raise")


def test_the_archives_tsv_has_no_header_and_labels_first(tmp_path: Path) -> None:
    found = load(tmp_path / "a_TRAIN.tsv", "1\t0.5\t0.25\t0.1\t1\n2\t1\t2\t3\tNaN\n1\t3\t2\t1\t0\n2\t1\t2\t3\t4\n")
    assert found.labels == ["1", "2", "1", "2"]
    assert found.series[1][:, 0].tolist() == [1, 2, 3]


def test_arrays(tmp_path: Path) -> None:
    x = np.arange(24.0).reshape(3, 4, 2)
    x[1, 3] = np.nan
    np.savez(tmp_path / "a.npz", X=x, y=np.array(["p", "q", "p"]))
    found = load(tmp_path / "a.npz")
    assert found.labels == ["p", "q", "p"]
    assert [one.shape for one in found.series] == [(4, 2), (3, 2), (4, 2)]
    np.savez(tmp_path / "b.npz", X=x, y=np.array([1.0, 2.0]))
    assert "one for each of 3 series" in refused(tmp_path / "b.npz")
    np.savez(tmp_path / "c.npz", y=np.zeros(2))
    assert "needs an array X" in refused(tmp_path / "c.npz")


def test_a_folder_with_a_sub_folder_for_each_class(tmp_path: Path) -> None:
    for label, name, rows in (("walk", "1", "0,1\n1,2\n"), ("walk", "2", "0,5\n"), ("run", "1", "1,8\n0,7\n")):
        (tmp_path / "all" / label).mkdir(parents=True, exist_ok=True)
        (tmp_path / "all" / label / f"{name}.csv").write_text("time,x\n" + rows)
    found = load(tmp_path / "all")
    assert found.names == ["run/1", "walk/1", "walk/2"]
    assert found.labels == ["run", "walk", "walk"]
    assert [one[:, 0].tolist() for one in found.series] == [[7, 8], [1, 2], [5]]


def test_a_folder_with_a_table_of_labels(tmp_path: Path) -> None:
    (tmp_path / "all").mkdir()
    for name in "ab":
        (tmp_path / "all" / f"{name}.csv").write_text("x,y\n1,2\n3,4\n")
    (tmp_path / "labels.csv").write_text("file,label\nb.csv,two\na.csv,one\n")
    found = load(tmp_path / "all", labels=tmp_path / "labels.csv")
    assert found.labels == ["one", "two"]
    assert "no labels" in refused(tmp_path / "all")


def test_files_of_the_archive(tmp_path: Path) -> None:
    ts = "#text\n@problemName P\n@timeStamps false\n@classLabel true a b\n@data\n1,2,3:4,5,?:a\n6,7:8,9:b\n"
    found = load(tmp_path / "p.ts", ts)
    assert found.labels == ["a", "b"]
    assert found.series[0].tolist() == [[1, 4], [2, 5], [3, 5]]
    assert found.series[1].tolist() == [[6, 8], [7, 9]]
    arff = "@relation r\n@attribute x real\n@attribute target {1,2}\n@data\n0.5,0.25,1\n1.5,?,2\n"
    found = load(tmp_path / "p.arff", arff)
    assert found.labels == ["1", "2"]
    assert [one[:, 0].tolist() for one in found.series] == [[0.5, 0.25], [1.5]]
    assert "line 6, value 2: 'x'" in refused(tmp_path / "q.ts", ts.replace("1,2,3", "1,x,3"))
    assert "@data" in refused(tmp_path / "r.ts", "@problemName P\n")


def test_what_is_at_fault_is_named(tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    assert "line 3, column 'x': 'oops'" in refused(path, LONG.replace("a,1,2", "a,1,oops"))
    assert load(path, bad="missing").series[0][:, 0].tolist() == [1, 1]
    assert "line 5" in refused(path, LONG.replace("b,1,4,8,down", "b,1,4,8,left"))
    assert "'down' and 'left'" in refused(path)
    assert "no rows" in refused(path, "id,t,x,label\n")
    assert refused(path, "")
    assert "--data.id" in refused(path, "x,y\n" + "1,2\n" * 9)
    assert "no labels" in refused(path, "id,x\na,1\na,2\nb,3\nb,4\n")
    assert "has no column 'klass'" in refused(path, LONG, label="klass")
    assert "not there" in refused(tmp_path / "absent.csv")
    with pytest.raises(DataError, match=r"--data\.file"):
        labelled_files.load(LabelledConfig())


def test_what_is_left_out_is_told(tmp_path: Path) -> None:
    rows = LONG.replace("b,0,3,7,down", "b,0,3,7,") + "c,0,1,2,\nc,1,2,3,NaN\nd,0,,,up\n"
    found = load(tmp_path / "f.csv", rows)
    assert found.names == ["a", "b"]
    assert any("1 series without a label" in note for note in found.notes)
    assert any("1 series without values" in note for note in found.notes)


def test_other_files_are_read_alike(tmp_path: Path) -> None:
    form = load(tmp_path / "long.csv", LONG).format
    (tmp_path / "new.csv").write_text("y,x,id,t\n1,2,n,0\n3,4,n,1\n")
    found = labelled_files.load(LabelledConfig(file=tmp_path / "new.csv"), form)
    assert found.labels == [None]
    assert found.series[0].tolist() == [[2, 1], [4, 3]]
    form = load(tmp_path / "a.tsv", "1\t5\t6\t7\n2\t1\t2\t3\n1\t3\t2\t1\n2\t1\t2\t3\n").format
    for rows, labels in (("1\t5\t6\t7\t8\n", ["1"]), ("1\t5\t6\n", ["1"]), ("5\t6\t7\n", [None])):  # longer, shorter
        (tmp_path / "b.tsv").write_text(rows)
        found = labelled_files.load(LabelledConfig(file=tmp_path / "b.tsv"), form, ("1", "2"))
        assert (found.labels, found.series[0][:2, 0].tolist()) == (labels, [5, 6])
