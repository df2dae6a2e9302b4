"""Files of labelled series that are easily misread: numbers of rows, names with zeros or points."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from labelled_files import load, refused

from plmu.timeseries import labelled_files
from plmu.timeseries.labelled import LabelledConfig


def test_numbers_of_rows_are_no_measurements(tmp_path: Path) -> None:
    long = load(tmp_path / "long.csv", ",id,x,label\n0,a,5,up\n1,a,6,up\n2,b,7,down\n3,b,8,down\n")
    assert long.format.values == ("x",)
    assert any("only numbers the rows: column 1" in note for note in long.notes)
    shuffled = ",s1,s2,s3,label\n7,1,2,3,up\n2,3,3,3,up\n9,4,4,5,down\n1,7,8,8,down\n"
    assert load(tmp_path / "wide.csv", shuffled).format.values == ("s1", "s2", "s3")
    other = tmp_path / "other.csv"
    other.write_text(",s1,s2,s3\n4,1,2,3\n")
    read = labelled_files.load(LabelledConfig(file=other), load(tmp_path / "wide.csv").format)
    assert read.series[0][:, 0].tolist() == [1, 2, 3]
    without = load(tmp_path / "tab.tsv", "1\t5\t2\t7\n2\t6\t2\t3\n1\t7\t2\t1\n2\t9\t2\t3\n")
    assert without.format.values == ("column 2", "column 3", "column 4")


def test_zeros_before_numbers_are_part_of_names(tmp_path: Path) -> None:
    rows = "".join(f"010,{step},1,10\n" for step in range(300)) + "10,0,2,01\n10,1,2,01\n"  # first seen far below
    found = load(tmp_path / "f.csv", "id,t,x,label\n" + rows)
    assert (found.names, found.labels) == (["010", "10"], ["10", "01"])


def test_labels_are_the_same_in_columns_of_numbers_and_of_text(tmp_path: Path) -> None:
    numbers = "id,t,x,label\na,0,1,1.0\na,1,1,1.0\nb,0,1,2.0\nb,1,1,2.0\n"
    assert load(tmp_path / "f.csv", numbers).labels == ["1", "2"]
    found = load(tmp_path / "f.csv", numbers + "c,0,1,other\nc,1,1,other\n")
    assert found.labels == ["1", "2", "other"]
    assert not any("taken as missing" in note for note in found.notes)
    found = load(tmp_path / "f.csv", numbers + "c,0,1,NaN\nc,1,1,NaN\n")
    assert found.names == ["a", "b"]
    assert load(tmp_path / "p.ts", "@classLabel true a b\n@data\n1,2:a\n1,3:?\n").labels == ["a"]


def test_names_that_are_missing_or_repeat(tmp_path: Path) -> None:
    rows = "id,t,x,label\na,0,1,up\na,1,2,up\n,0,4,down\n,1,4,up\nb,0,3,down\nb,1,3,down\n"
    found = load(tmp_path / "f.csv", rows)
    assert found.names == ["a", "b"]
    assert any("2 rows without a name" in note for note in found.notes)
    wide = "id,s1,s2,s3,label\na,1,2,3,up\nb,1,2,3,up\nc,4,5,6,down\nc,4,5,7,down\n"
    found = load(tmp_path / "g.csv", wide)
    assert [one.shape for one in found.series] == [(3, 1)] * 4
    assert any("names that repeat in column 'id': 1" in note for note in found.notes)


def test_a_table_of_labels_is_taken_by_whole_names(tmp_path: Path) -> None:
    rows = "id,t,x\nr.1,0,1\nr.1,1,2\nr.2,0,1\nr.2,1,2\n"
    labels = tmp_path / "labels.csv"
    labels.write_text("id,label\nr.1,up\nr.2,down\n")
    assert load(tmp_path / "f.csv", rows, labels=labels).labels == ["up", "down"]
    labels.write_text("id,label\nr.1,up\nr.2,NA\n")
    assert load(tmp_path / "f.csv", labels=labels).labels == ["up"]
    labels.write_text("id,label\nr.1,up\nr.2,down\nr.1,down\n")
    assert "line 4, column 'label': series r.1 has the labels 'up' and 'down'" in refused(
        tmp_path / "f.csv", labels=labels
    )


def test_a_table_of_labels_among_the_files(tmp_path: Path) -> None:
    for name in ("001", "002"):
        (tmp_path / f"{name}.csv").write_text("x,y\n1,2\n3,4\n")
    (tmp_path / "labels.csv").write_text("file,label\n001,up\n002,down\n")
    found = load(tmp_path, labels=tmp_path / "labels.csv")
    assert (found.names, found.labels) == (["001", "002"], ["up", "down"])


def test_files_of_the_same_name_in_several_folders(tmp_path: Path) -> None:
    for folder in "ab":
        (tmp_path / "all" / folder).mkdir(parents=True)
        (tmp_path / "all" / folder / "1.csv").write_text("x,y\n1,2\n3,4\n")
    labels = tmp_path / "labels.csv"
    labels.write_text("file,label\na/1.csv,up\nb/1.csv,down\n")
    assert load(tmp_path / "all", labels=labels).labels == ["up", "down"]
    labels.write_text("file,label\nc/1.csv,up\nd/1.csv,down\n")
    assert "names with folders" in refused(tmp_path / "all", labels=labels)


def test_channels_of_files_are_taken_by_name(tmp_path: Path) -> None:
    for label, rows in (("run", "x,y\n1,2\n"), ("walk", "y,x\n2,1\n")):
        (tmp_path / label).mkdir()
        (tmp_path / label / "1.csv").write_text(rows)
    assert [one.tolist() for one in load(tmp_path).series] == [[[1, 2]], [[1, 2]]]
    (tmp_path / "walk" / "1.csv").write_text("z,x\n2,1\n")
    assert "no column 'y'" in refused(tmp_path)


def test_arrays_with_odd_labels_and_lengths(tmp_path: Path) -> None:
    x, path = np.ones((3, 4)), tmp_path / "a.npz"
    for y, labels in (([b"p", b"q", b"p"], ["p", "q", "p"]), ([np.inf, 1.0, 2.5], ["inf", "1", "2.5"])):
        np.savez(path, X=x, y=np.array(y))
        assert load(path).labels == labels
    for lengths in ([1, 2, -1], [1, 2, 5], [1.0, 2.0, np.nan]):
        np.savez(path, X=x, y=np.arange(3), lengths=np.array(lengths))
        assert "lengths must be integers from 0 to 4" in refused(path)


def test_a_channel_that_does_not_change_in_any_series_is_told(tmp_path: Path) -> None:
    rows = "id,subject,x,label\na,1,5,up\na,1,6,up\nb,2,7,down\nb,2,7,down\n"
    found = load(tmp_path / "f.csv", rows)
    assert any("the same in all rows of a series: subject." in note for note in found.notes)
    found = load(tmp_path / "f.csv", values=("x",))
    assert not any("the same in all rows" in note for note in found.notes)


@pytest.mark.parametrize("index", [False, True])
def test_a_header_that_counts_the_steps_is_no_series(tmp_path: Path, index: bool) -> None:
    rows = ["0,1,2,label", "5.5,6,7,up", "3.5,2,1,down", "4.5,5,6,up"]
    text = "\n".join(f"{place - 1 if place else ''},{row}" if index else row for place, row in enumerate(rows))
    found = load(tmp_path / "f.csv", text + "\n")
    assert found.labels == ["up", "down", "up"]
    assert found.series[0][:, 0].tolist() == [5.5, 6, 7]
    again = load(tmp_path / "g.csv", "1,2,3,up\n2,3,4,down\n4,3,2,up\n")  # a series that happens to count
    assert again.labels == ["up", "down", "up"]


def test_rows_without_a_time_are_left_out(tmp_path: Path) -> None:
    for times in ("0123", ["2024-01-01", "2024-01-02", "2024-01-03", "2024-01-04"]):
        rows = [f"{name},{'' if name + when == 'a' + times[1] else when},{when[-1]},{name}\n" for name in "ab"
                for when in times]  # fmt: skip
        found = load(tmp_path / "f.csv", "id,time,x,label\n" + "".join(rows))
        assert [len(one) for one in found.series] == [3, 4]
        assert any("1 rows without a time in column 'time'" in note for note in found.notes)
