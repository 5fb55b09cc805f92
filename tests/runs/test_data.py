"""Adult and own tables become studies; files that are damaged or do not fit are refused in words."""

from __future__ import annotations

import gzip
import lzma
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from betastar.runs import adult as packaged_table
from betastar.runs.adult import AGES, SHA256, adult, table
from betastar.runs.reading import StudyError
from betastar.runs.tables import own
from betastar.training import Records, Secret
from studies.make_adult import main as make

from ..trained_runs import people

DATA = Path(packaged_table.__file__).parent / "data"


def test_adult_is_the_papers() -> None:
    frame = table()
    assert len(frame) == 32_561
    assert len(table("test")) == 16_281
    assert frame["age"].nunique() == 73
    assert frame["age"].between(17, 90).all()
    study = adult(seed=3)
    assert (len(study.train), len(study.test), study.columns) == (26_048, 6_513, 108)
    assert study.secret.count == len(AGES) == 74
    everything = torch.cat([study.train.tensors[0], study.test.tensors[0]])
    torch.testing.assert_close(everything.mean(dim=0), torch.zeros(108), atol=1e-4, rtol=0)
    torch.testing.assert_close(everything.std(dim=0), torch.ones(108), atol=1e-3, rtol=0)
    assert study.train.tensors[1].float().mean() == pytest.approx(0.24, abs=0.01)
    other = adult(seed=4)
    assert not torch.equal(study.train.tensors[0], other.train.tensors[0])
    assert torch.equal(study.train.tensors[0], adult(seed=3).train.tensors[0])


def test_ages_are_encoded_as_the_model_sees_them() -> None:
    frame = table().drop(columns="income").head(5)
    study = adult()
    assert study.encoder is not None
    x = study.encoder.tensor(frame)
    for age in (17, 90):
        variants = study.secret.variants(Records((x,), None), study.secret.only(age)).inputs[0]
        torch.testing.assert_close(variants, study.encoder.tensor(frame.assign(age=age)))


@pytest.mark.slow
def test_the_packaged_file_is_what_its_script_makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import hashlib

    packaged = DATA / "adult.csv.xz"
    assert hashlib.sha256(packaged.read_bytes()).hexdigest() == SHA256
    assert "CC BY 4.0" in (DATA / "ATTRIBUTION.md").read_text()
    frame = pd.concat([table("data").assign(part="data"), table("test").assign(part="test")])
    columns = [column for column in frame.columns if column != "part"]
    for name, part, dot in (("adult.data", "data", ""), ("adult.test", "test", ".")):
        rows = frame[frame["part"] == part][columns].astype(str).agg(", ".join, axis=1) + dot
        first = ["|1x3 Cross validator"] if part == "test" else []
        (tmp_path / name).write_text("\n".join([*first, *rows, ""]) + "\n")
    make(tmp_path, tmp_path / "made.xz")
    assert hashlib.sha256((tmp_path / "made.xz").read_bytes()).hexdigest() == SHA256


def test_a_damaged_package_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("betastar.runs.adult.SHA256", "0" * 64)
    with pytest.raises(StudyError, match=r"adult\.csv\.xz is damaged"):
        table()


# ---------------------------------------------------------------------- own tables


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_table_of_ones_own(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"people.{suffix}"
    people().to_csv(path, index=False) if suffix == "csv" else people().to_parquet(path)
    study = own(path, "rich", "age", drop=["name"])
    assert study.classes == ["no", "yes"]
    assert study.name == "people"
    assert study.secret.labels == list(range(20, 60))
    assert study.columns == 1 + 3 + 1 + 1
    assert torch.isfinite(study.train.tensors[0]).all()
    study.secret.check(Records((study.train.tensors[0],), study.train.tensors[1]), complete=False)
    assert own(path, "rich", "age", values=["17:90"], drop=["name"]).secret.count == 74
    with pytest.raises(StudyError, match=r"the sensitive column 'town' is missing \(NaN\) in \d+ of 300 records"):
        own(path, "rich", "town", drop=["name"])
    assert own(path, "rich", "member", drop=["name"]).secret.count == 2


def test_tables_that_cannot_be_studied(tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    frame = people(600)
    frame.assign(same=1, hole=frame["pay"]).to_csv(path, index=False)
    for target, sensitive, drop, message in (
        ("nothing", "age", ["name"], "has no column 'nothing'; it has 'age', 'town'"),
        ("rich", "shoe", ["name"], "has no column 'shoe'"),
        ("rich", "age", ["shoe"], "has no column 'shoe'"),
        ("same", "age", ["name"], "the label 'same' is the same in each record"),
        ("rich", "same", ["name"], "the sensitive column 'same' is constant"),
        ("rich", "hole", ["name"], r"the sensitive column 'hole' is missing \(NaN\) in \d+ of 600 records"),
        ("rich", "age", [], r"'name' is different in each of the 600 records.* Leave it out \(--drop name\).*decimal point"),
    ):
        with pytest.raises(StudyError, match=message):
            own(path, target, sensitive, drop=drop)
    for options, message in (
        ({"values": ["20", "21"]}, "also takes the value"),
        ({"values": ["old", "young"]}, "holds numbers"),
        ({"values": ["30:40"]}, "must contain all values of 'age'"),
        ({"values": ["0:old"]}, "--value must be two numbers as in 17:90, got '0:old'"),
    ):
        with pytest.raises(StudyError, match=message):
            own(path, "rich", "age", drop=["name"], **options)  # type: ignore[arg-type]
    frame.to_parquet(tmp_path / "cut.parquet")
    half = (tmp_path / "cut.parquet").read_bytes()[:4000]
    for name, content, message in (
        ("gone.csv", None, "there is no file .*gone.csv: name a CSV or Parquet file, or 'adult'"),
        ("cut.parquet", half, r"truncated or no table \(.*\): export or download it again"),
        ("short.csv", b"a,b\n1,2\n", "has 1 records; at least 10 are needed"),
        ("empty.csv", b"", "is empty: export or download it again"),
        ("book.xlsx", b"PK", r"is a spreadsheet: save it as CSV \(UTF-8\) first"),
    ):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(StudyError, match=message):
            own(tmp_path / name, "a", "b")


def commas(frame: pd.DataFrame, where: str) -> str:
    """A CSV in which these rows end with a comma."""
    head, *rest = frame.to_csv(index=False).splitlines()
    wanted = {"all": lambda i: True, "first": lambda i: i == 0, "last": lambda i: i == len(rest) - 1}[where]
    return "\n".join([head, *(row + "," if wanted(i) else row for i, row in enumerate(rest))]) + "\n"


@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "csv.xz"])
@pytest.mark.parametrize(("where", "line"), [("all", 2), ("first", 2), ("last", 61)])
def test_a_comma_at_the_end_of_rows_shifts_nothing(tmp_path: Path, where: str, line: int, suffix: str) -> None:
    path = tmp_path / f"people.{suffix}"
    text = commas(people(60), where)
    with {"csv": open, "csv.gz": gzip.open, "csv.xz": lzma.open}[suffix](path, "wt") as file:
        file.write(text)
    message = rf"line {line}, has 7 values \(a comma at the end of the row\?\), but the first line names 6 columns"
    with pytest.raises(StudyError, match=message):
        own(path, "rich", "member", drop=["name"])


def test_rows_of_another_length(tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    whole = people(60).to_csv(index=False)
    for text, message in (
        (whole + "40,north\n", "line 62, has 2 values, but the first line names 6 columns"),
        (whole + "40,north,1,True,me,yes,1,2\n", "line 62, has 8 values, but the first line names 6 columns"),
        (whole.replace("town", "age", 1), "has two columns that are called 'age'"),
        (whole.replace("rich\n", "rich,\n", 1), "line 2, has 6 values, but the first line names 7 columns"),
        (commas(people(60), "all").replace("rich\n", "rich,\n", 1), "the column 'Unnamed: 6' holds no value at all"),
    ):
        path.write_text(text)
        with pytest.raises(StudyError, match=message):
            own(path, "rich", "age", drop=["name"])
    path.write_text(
        "\ufeff" + whole.replace("person 7", '"per,\nson"') + "\n\n"
    )  # quoted, with a mark and empty lines: as it should be
    assert own(path, "rich", "age", drop=["name"]).columns == 6


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_other_delimiters_than_the_comma(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, delimiter: str) -> None:
    """The same study, and the same refusals."""
    frame = people(60)
    frame.loc[3, "name"] = "Smith, Ann"
    for name, sep in (("comma", ","), ("other", delimiter)):
        frame.to_csv(tmp_path / f"{name}.csv", index=False, sep=sep)
    comma, other = (own(tmp_path / f"{name}.csv", "rich", "member", drop=["name"]) for name in ("comma", "other"))
    assert comma.fingerprint() == other.fingerprint()
    word = {";": "semicolon", "\t": "tab"}[delimiter]
    path = tmp_path / "other.csv"
    path.write_text(path.read_text() + f"40{delimiter}north{delimiter}1{delimiter}True{delimiter}me{delimiter}yes{delimiter}\n")
    with pytest.raises(StudyError, match=rf"line 62, has 7 values \(a {word} at the end of the row\?\)"):
        own(path, "rich", "member", drop=["name"])
    frame.to_csv(path, index=False, sep=delimiter, decimal=",")
    with pytest.raises(
        StudyError, match=r"numbers with a decimal comma \(the column 'pay', '\d+,\d+'\)\. Write a decimal poi"
    ) as told:
        own(path, "rich", "member", drop=["name"])
    remedy = re.search(r"pandas\..*", str(told.value))
    assert remedy is not None
    monkeypatch.chdir(tmp_path)
    exec(remedy[0], {"pandas": pd})
    path = tmp_path / "points.csv"
    assert own(path, "rich", "member", drop=["name"]).fingerprint() == comma.fingerprint()


@pytest.mark.parametrize("suffix", ["csv", "csv.gz"])
def test_a_table_that_is_not_utf8(tmp_path: Path, suffix: str) -> None:
    """The line is named, however far from the start it is; the remedy works."""
    frame = people(600)
    frame.loc[500, "town"] = "Zürich"
    path = tmp_path / f"people.{suffix}"
    frame.to_csv(path, index=False, encoding="latin-1")
    with pytest.raises(
        StudyError, match=rf"people\.{suffix}, line 502, is not UTF-8 .as Latin-1 it reads .*Zürich.* iconv -f latin1"
    ):
        own(path, "rich", "member", drop=["name"])
    frame.to_csv(path, index=False, encoding="utf-8")
    assert own(path, "rich", "member", drop=["name"]).secret.count == 2


def test_columns_of_parquet_are_named(tmp_path: Path) -> None:
    path = tmp_path / "people.parquet"
    for column, sensitive, message in (
        ([[1, 2]] * 300, "age", r"the column 'x' is nested \(a ndarray .* or leave it out \(--drop x\)"),
        ([{"a": 1}] * 300, "age", r"the column 'x' is nested \(a dict"),
        ([[i % 3] for i in range(300)], "x", r"the column 'x' is nested .*: make a column of each part\."),
        (pd.array([1, 2, None] * 100, dtype="Int64"), "x", r"the sensitive column 'x' is missing \(NaN\) in 100 of 300 records"),
        (np.where(np.arange(300) < 7, np.inf, 1.0), "age", r"the column 'x' is infinite in 7 records"),
        ([None] * 300, "age", r"the column 'x' holds no value at all"),
    ):
        people().assign(x=column).to_parquet(path)
        with pytest.raises(StudyError, match=message):
            own(path, "rich", sensitive, drop=["name"])
        if sensitive == "age":
            assert own(path, "rich", "age", drop=["name", "x"]).columns == 6
    plain = [1.0, 2.0, None] * 100
    for kind in ("Int64", "Float64", "boolean"):
        values = [True, False, None] * 100 if kind == "boolean" else plain
        people().assign(x=pd.array(values, dtype=kind)).to_parquet(path)
        nullable = own(path, "rich", "age", drop=["name"])
        people().assign(x=np.array(values, dtype=float)).to_parquet(path)
        assert torch.equal(nullable.train.tensors[0], own(path, "rich", "age", drop=["name"]).train.tensors[0])
    people().assign(rich=None).to_parquet(path)
    with pytest.raises(StudyError, match="the column 'rich' holds no value at all"):
        own(path, "rich", "age", drop=["name"])


def test_a_secret_that_is_missing_says_so() -> None:
    x = torch.randn(20, 3)
    x[:, 0] = torch.arange(20) % 2
    x[[3, 5], 0] = float("nan")
    message = r"the secret 'sex' is missing \(NaN\) in 2 of 20 records\. Fill it in"
    with pytest.raises(ValueError, match=message):
        Secret.column(0, [0.0, 1.0], name="sex").check(Records((x,), torch.zeros(20)), complete=False)
    with pytest.raises(ValueError, match=message):
        Secret.label([0.0, 1.0], name="sex").check(Records((x,), x[:, 0]), complete=False)
