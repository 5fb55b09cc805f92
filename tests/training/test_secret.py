"""Secrets: every way to describe one gives the candidate records that a person would write down."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    StandardScaler,
)

from betastar.training import Records, Secret

X = torch.arange(12.0).reshape(3, 4)
Y = torch.tensor([0, 1, 2])
RECORDS = Records((X,), Y)


def rows(secret: Secret, records: Records = RECORDS) -> Any:
    return secret.variants(records, range(secret.count)).inputs[0].reshape(len(records), secret.count, -1)


def test_a_column() -> None:
    secret = Secret.column(2, [5.0, 7.0], labels=["low", "high"], name="pay")
    variants = rows(secret)
    assert variants[:, :, 2].tolist() == [[5.0, 7.0]] * 3
    assert variants[1, 0].tolist() == [4.0, 5.0, 5.0, 7.0]
    assert secret.only("high", "low") == [1, 0]
    assert repr(secret) == "Secret('pay', 2 values)"
    assert secret.variants(RECORDS, [0, 1]).target.tolist() == [0, 0, 1, 1, 2, 2]
    assert X[0, 2] == 2.0  # the records themselves stay


def test_a_column_of_positions_and_of_whole_numbers() -> None:
    images = torch.zeros(2, 3, 4)
    variants = Secret.column(1, [1.0, 2.0]).variants(Records((images,), None), [0, 1]).inputs[0]
    assert variants[:, :, 1].tolist() == [[1.0] * 3, [2.0] * 3] * 2
    words = torch.zeros(2, 4, dtype=torch.long)
    changed = Secret.column(3, range(3)).variants(Records((words,), None), [2]).inputs[0]
    assert changed.dtype == torch.long
    assert changed[:, 3].tolist() == [2, 2]


def test_a_pixel() -> None:
    images = Records((torch.arange(2.0 * 1 * 3 * 4).reshape(2, 1, 3, 4),), torch.tensor([0, 1]))
    images.inputs[0][:, 0, 2, 1] = torch.tensor([0.5, 0.0])
    pixel = Secret.column((0, 2, 1), [0.0, 0.5], name="pixel")
    pixel.check(images, complete=True)
    assert pixel.own(images).tolist() == [1, 0]
    made = pixel.variants(images, [1, 0]).inputs[0]
    assert made[:, 0, 2, 1].tolist() == [0.5, 0.0, 0.5, 0.0]
    assert torch.equal(made[0], images.inputs[0][0])
    assert torch.equal(made[3], images.inputs[0][1])
    for place in ((0, 3, 1), (2, 1)):
        with pytest.raises(ValueError, match=r"a record of the model's input is of shape \(1, 3, 4\)"):
            Secret.column(place, [0.0, 0.5], name="pixel").check(images, complete=True)
    with pytest.raises(ValueError, match="column must be a whole number of at least 0 or a tuple of them"):
        Secret.column((0, -1), [0.0, 0.5])


def test_a_function_is_called_once_for_several_questions() -> None:
    calls = 0

    def either(record: Records) -> Records:
        nonlocal calls
        calls += 1
        return Records((record.inputs[0].abs() * torch.tensor([[1.0], [-1.0]]),), record.target.repeat(2))

    records = Records((torch.tensor([[1.0], [-2.0], [3.0]]),), torch.zeros(3))
    secret = Secret.function(either, count=2)
    once = secret.of(records)
    assert calls == 3
    assert once.own(records).tolist() == secret.own(records).tolist() == [0, 1, 0]
    assert torch.equal(once.variants(records, [1, 0]).inputs[0], secret.variants(records, [1, 0]).inputs[0])
    calls = 0
    assert torch.equal(once.shares(records), torch.full((3, 2), 0.5, dtype=torch.float64))
    assert calls == 2  # the candidates of the candidates of one record


def test_a_one_hot_group_and_columns_together() -> None:
    variants = rows(Secret.one_hot([0, 3], on=[2.0, 3.0], off=[-2.0, -3.0], labels=["a", "b"]))
    assert variants[0].tolist() == [[2.0, 1.0, 2.0, -3.0], [-2.0, 1.0, 2.0, 3.0]]
    variants = rows(Secret.columns([1, 2], [[0.0, 1.0], [5.0, 6.0], [7.0, 8.0]]))
    assert variants[0, :, 1:3].tolist() == [[0.0, 1.0], [5.0, 6.0], [7.0, 8.0]]


def test_the_label() -> None:
    variants = Secret.label(3).variants(RECORDS, range(3))
    assert variants.target.tolist() == [0, 1, 2] * 3
    assert torch.equal(variants.inputs[0], X.repeat_interleave(3, 0))
    signs = Secret.label([-1.0, 1.0]).variants(Records((X,), torch.ones(3, 1)), [0, 1])
    assert signs.target.shape == (6, 1)
    assert signs.target[:, 0].tolist() == [-1.0, 1.0] * 3


def test_several_at_once() -> None:
    pay, age = Secret.column(0, [1.0, 2.0]), Secret.column(3, [7.0, 8.0, 9.0])
    joint = Secret.joint(pay, age)
    assert joint.count == 6
    assert joint.as_columns() is not None
    assert rows(joint)[0][:, [0, 3]].tolist() == [[1.0, 7.0], [1.0, 8.0], [1.0, 9.0], [2.0, 7.0], [2.0, 8.0], [2.0, 9.0]]
    with_label = Secret.joint(age, Secret.label(2))
    assert with_label.as_columns() is None
    variants = with_label.variants(RECORDS, range(6))
    assert variants.inputs[0][:, 3].reshape(3, 6)[2].tolist() == [7.0, 7.0, 8.0, 8.0, 9.0, 9.0]
    assert variants.target.reshape(3, 6)[2].tolist() == [0, 1] * 3
    assert variants.inputs[0][12:, 0].tolist() == [8.0] * 6
    assert with_label.labels[1] == (7.0, 1)


def test_any_function() -> None:
    values = {0: [0.0], 1: [4.0, 5.0], 2: [7.0, 8.0, 9.0]}

    def candidates(record: Records) -> Records:
        """As many values of column 0 as the rest of the record allows."""
        allowed = values[int(record.target)]
        rows = record.inputs[0].repeat(len(allowed), 1)
        rows[:, 0] = torch.tensor(allowed)
        return Records((rows,), record.target.repeat(len(allowed)))

    secret = Secret.function(candidates, 3)
    variants = rows(secret)
    # A record with fewer candidates than the others repeats its last one.
    assert variants[:, :, 0].tolist() == [[0.0, 0.0, 0.0], [4.0, 5.0, 5.0], [7.0, 8.0, 9.0]]
    secret.check(RECORDS, complete=True)
    with pytest.raises(ValueError, match=r"Records with 1 to 2 rows, got 3 of them for record 2"):
        Secret.function(candidates, 2).variants(RECORDS, [0])
    with pytest.raises(ValueError, match="candidates must contain the record itself"):
        Secret.function(lambda record: Records((record.inputs[0] + 1.0,), record.target), 2).check(RECORDS, complete=True)

    def neighbours(record: Records) -> Records:
        return Records((torch.cat([record.inputs[0] + k for k in (-1.0, 0.0, 1.0)]),), record.target.repeat(3))

    with pytest.raises(ValueError, match="must not depend on the secret"):
        Secret.function(neighbours, 3).check(RECORDS, complete=True)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Secret.column(0, [1.0]), r"values must be at least two for the secret 'column 0', got 1"),
        (lambda: Secret.column(0, [1.0, 1.0]), r"1\.0 and 1\.0 of 'column 0' look the same"),
        (
            lambda: Secret.column(0, ["male", "female"]),
            r"values must be numbers as the model sees them.*Secret\.from_transformer",
        ),
        (lambda: Secret.column(0, [1.0, np.nan]), "values must be finite"),
        (lambda: Secret.column(-1, [1.0, 2.0]), r"whole numbers of at least 0, got \[-1\]"),
        (lambda: Secret.column(0, [[1.0, 2.0]]), r"one column, got shape \(1, 2\); see Secret\.columns"),
        (lambda: Secret.columns([0, 1], [1.0, 2.0]), r"one row for each value of the secret and 2 columns, got shape \(2,\)"),
        (lambda: Secret.columns([0, 0], [[1.0, 2.0], [2.0, 3.0]]), r"columns must be different"),
        (lambda: Secret.column(0, [1.0, 2.0], labels=["a"]), "labels must be one for each of the 2 values, got 1"),
        (lambda: Secret.column(0, [1.0, 2.0]).only(3.0), r"has no value 3\.0; it has 1\.0, 2\.0"),
        (lambda: Secret.joint(Secret.label(2)), "secrets must be at least two, got 1"),
        (lambda: Secret.label(1), "values must be at least two for the secret 'label', got 1"),
        (lambda: Secret.function(3, 2), "candidates must be a function"),  # type: ignore[arg-type]
        (lambda: Secret.function(lambda r: r, 1), "count must be a whole number of at least 2, got 1"),
    ],
)
def test_bad_descriptions(make: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        make()


@pytest.mark.parametrize(
    ("secret", "message"),
    [
        (Secret.column(9, [1.0, 2.0], name="age"), r"the secret 'age' needs column 9, but the model's input has 4 columns"),
        (
            Secret.column(0, [0.0, 4.0], name="age"),
            r"'age' never takes the value 8\.0 that a record holds; its values are 0\.0, 4\.0",
        ),
        (
            Secret.column(0, [0.0, 4.0, 8.0, 99.0], name="age"),
            r"no record holds the value 99\.0 of the secret 'age'.*unseen=True",
        ),
        (Secret.label(2), r"the secret 'label' never takes the value 2\.0"),
        (Secret.label(4), "no record holds the value 3 of the secret 'label'"),
        (Secret.column(0, [0.0, 1.0], argument="age"), "in argument 'age', which the model is not called with"),
        (Secret.one_hot([0, 1]), r"never takes the value \[4\.0, 5\.0\]"),
    ],
)
def test_secrets_that_do_not_fit_the_data(secret: Secret, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        secret.check(RECORDS, complete=True)


def test_records_that_hold_several_values() -> None:
    with pytest.raises(ValueError, match="different values at different positions"):
        Secret.column(0, [0.0, 1.0]).check(Records((torch.eye(2)[None],), None), complete=False)
    with pytest.raises(ValueError, match="targets differ within a record"):
        Secret.label(2).check(Records((torch.zeros(1, 2),), torch.tensor([[0, 1]])), complete=False)


def test_values_within_the_range_need_not_occur() -> None:
    Secret.column(0, [0.0, 2.0, 4.0, 8.0]).check(RECORDS, complete=True)
    Secret.column(0, [0.0, 4.0, 8.0, 99.0], unseen=True).check(RECORDS, complete=True)
    Secret.column(0, [0.0, 4.0, 8.0, 99.0]).check(RECORDS, complete=False)
    Secret.joint(Secret.column(0, [0.0, 4.0, 8.0]), Secret.label(3)).check(RECORDS, complete=True)


# ---------------------------------------------------------------------- scikit-learn

TABLE = pd.DataFrame(
    {
        "age": [17, 30, 45, 90, 38, 22],
        "sex": ["Female", "Male", "Male", "Female", "Male", "Female"],
        "school": ["none", "basic", "high", "high", "basic", "none"],
        "hours": [40.0, 20.0, 60.0, 38.5, 40.0, 10.0],
    }
)
MIXED = ColumnTransformer(
    [("numbers", StandardScaler(), ["age", "hours"]), ("words", OneHotEncoder(handle_unknown="ignore"), ["sex", "school"])]
)


def encoders() -> list[Any]:
    return [
        MIXED,
        Pipeline([("encode", MIXED), ("scale", StandardScaler(with_mean=False))]),
        make_pipeline(MIXED, LogisticRegression()),
        ColumnTransformer(
            [("numbers", "passthrough", [0, 3]), ("words", make_pipeline(OneHotEncoder(drop="first")), slice(1, 3))]
        ),
        ColumnTransformer([("words", OrdinalEncoder(), [False, True, True, False])], remainder="passthrough"),
    ]


@pytest.mark.parametrize("which", range(5))
@pytest.mark.parametrize(
    ("column", "values"), [("age", [17, 50, 90]), ("sex", ["Male", "Female"]), ("school", ["none", "basic", "high"])]
)
@pytest.mark.parametrize("with_records", [False, True])
def test_raw_values_through_a_fitted_transformer(which: int, column: str, values: list[Any], with_records: bool) -> None:
    """Each variant equals the transformed record with the raw value replaced."""
    transformer = encoders()[which].fit(TABLE, [0, 1, 0, 1, 0, 1])
    whole = transformer[:-1] if hasattr(transformer, "predict") else transformer

    def transform(frame: pd.DataFrame) -> Any:
        table = whole.transform(frame)
        return torch.tensor(np.asarray(table.toarray() if hasattr(table, "toarray") else table, dtype=np.float64))

    secret = Secret.from_transformer(transformer, column, values, records=TABLE if with_records else None)
    assert secret.labels == values
    assert secret.name == column
    variants = rows(secret, Records((transform(TABLE),), None))
    for k, value in enumerate(values):
        torch.testing.assert_close(variants[:, k], transform(TABLE.assign(**{column: value})))


def test_raw_columns_that_change_together() -> None:
    transformer = MIXED.fit(TABLE)
    secret = Secret.from_transformer(transformer, ["sex", "school"], [("Male", "none"), ("Female", "high")])
    variants = rows(secret, Records((torch.tensor(transformer.transform(TABLE)),), None))
    wanted = transformer.transform(TABLE.assign(sex="Female", school="high"))
    torch.testing.assert_close(variants[:, 1], torch.tensor(wanted))


def test_what_cannot_be_encoded() -> None:
    transformer = MIXED.fit(TABLE)
    for column, values, message in (
        ("wage", [1, 2], "the column 'wage' does not exist; the transformer was fitted on 'age', 'sex', 'school', 'hours'"),
        ("sex", ["Male", "Other"], "the column 'sex' never takes the value 'Other'; it takes 'Female', 'Male'"),
        ("age", [17], "values must be at least two for the column 'age', got 1"),
        (["sex", "age"], [("Male",), ("Female",)], "values must be tuples of 2"),
    ):
        with pytest.raises(ValueError, match=message):
            Secret.from_transformer(transformer, column, values)  # type: ignore[arg-type]
    interacting = make_pipeline(MIXED, PolynomialFeatures(2)).fit(TABLE)
    normalised = make_pipeline(MIXED, Normalizer()).fit(TABLE)
    for entangled in (interacting, normalised):
        with pytest.raises(ValueError, match=r"depends on other columns of the record .*Secret\.function"):
            Secret.from_transformer(entangled, "age", [17, 90], records=TABLE)
    dropping = ColumnTransformer([("numbers", StandardScaler(), ["hours"])]).fit(TABLE)
    with pytest.raises(ValueError, match="drops the column 'age': the model never sees it"):
        Secret.from_transformer(dropping, "age", [17, 90])
    with pytest.raises(ValueError, match="must be fitted on a DataFrame"):
        Secret.from_transformer(StandardScaler().fit(np.eye(3)), "age", [17, 90])
    with pytest.raises(ValueError, match="records must be a table with all columns"):
        Secret.from_transformer(transformer, "age", [17, 90], records=TABLE[["age"]])


def test_transformers_that_look_at_the_whole_record() -> None:
    ages, sexes = [17.0, 30.0, np.nan, 90.0] * 20, ["m", "f", np.nan, "x"] * 20
    frame = pd.DataFrame({"age": ages, "hours": np.linspace(10, 60, 80), "sex": sexes})
    numbers = frame[["age", "hours"]]

    def interact(x: Any) -> Any:
        return x.assign(both=x["age"] * (x["hours"] > 40))[["age", "hours", "both"]]

    entangled = make_pipeline(FunctionTransformer(interact)).fit(numbers)
    with pytest.raises(ValueError, match=r"contains FunctionTransformer, .*pass records="):
        Secret.from_transformer(entangled, "age", [17, 90])
    with pytest.raises(ValueError, match="depends on other columns"):
        Secret.from_transformer(entangled, "age", [17, 90], records=numbers.fillna(40.0))
    words = make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder(drop="first", sparse_output=False))
    filled = make_pipeline(SimpleImputer(add_indicator=True), StandardScaler())  # says which values were missing
    imputed = ColumnTransformer([("numbers", filled, ["age", "hours"]), ("words", words, ["sex"])]).fit(frame)
    encoded = torch.tensor(imputed.transform(frame))
    for column, values in (("age", [17.0, 90.0]), ("sex", ["m", "f"])):
        variants = rows(Secret.from_transformer(imputed, column, values), Records((encoded,), None))
        torch.testing.assert_close(variants[:, 1], torch.tensor(imputed.transform(frame.assign(**{column: values[1]}))))


def test_a_digest_tells_values_of_joint_secrets_apart() -> None:
    """A monitor that goes on from a saved state compares digests."""

    def digest(values: list[float], label: Secret) -> str:
        return Secret.joint(Secret.column(0, values, labels=["a", "b"], name="x"), label).digest()

    label = Secret.label(2, name="y")
    assert digest([0.0, 1.0], label) == digest([0.0, 1.0], Secret.label(2, name="y"))
    assert len({digest([0.0, 1.0], label), digest([0.0, 2.0], label), digest([0.0, 1.0], label.with_prior([0.3, 0.7]))}) == 3
