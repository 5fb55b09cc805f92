"""Reports of persons with several records, and of an attacker who sees the final model only."""

from __future__ import annotations

from pathlib import Path

import pytest

import betastar as bs
from betastar.report.facts import Facts, public
from betastar.report.statement import notices, verdicts, weaker
from betastar.rounding import down

RUN = bs.DPSGD(2.0, 0.02, 300)


def facts(run: bs.DPSGD = RUN, **more: object) -> Facts:
    return Facts("a run", run, {}, "betastar", is_run=True, name="a run", **more)  # type: ignore[arg-type]


def test_the_person_with_most_records_stands_beside_a_record() -> None:
    record, person = verdicts(facts(records_per_person=5))
    assert person.title == "A person with 5 records"
    expected = bs.analyze(RUN, bs.Membership(records=5), method="certified").bayes_security.lower
    assert person.beta == down(expected)
    assert float(person.beta) < float(record.beta)
    assert "Nobody in the training data has more" in person.sentence


@pytest.mark.parametrize("records", [None, 1])
def test_nothing_is_said_where_nobody_has_several(records: int | None) -> None:
    assert len(verdicts(facts(records_per_person=records))) == 1


def test_where_nothing_is_proved_the_reason_is_said() -> None:
    cut = bs.DPSGD(2.0, 0.02, 300, max_batch_size=40, dataset_size=1000)
    about = facts(cut, records_per_person=5)
    assert about.person is None
    assert any("Some people have up to 5 records" in notice.text and "max_batch_size" in notice.text for notice in notices(about))


def test_the_largest_number_is_not_published_but_a_limit_is() -> None:
    told = [public(facts(records_per_person=5, max_records_per_person=limit)).records_per_person for limit in (None, 8)]
    assert told == [None, 8]


def test_the_final_model_is_a_heuristic_and_said_to_be_one() -> None:
    said = weaker(facts(bs.DPSGD(0.5, 0.01, 2000)))
    assert said is not None
    assert "a heuristic, not a bound" in said
    assert "weaker attacker" in said
    assert weaker(facts(bs.DPSGD(0.5, 0.01, 2000, "fixed-size"))) is None
    assert weaker(facts()) is None, "it says nothing else"


def test_the_report_shows_both(tmp_path: Path) -> None:
    from betastar.report.report import write

    setting = tmp_path / "setting.json"
    setting.write_text('{"noise_multiplier": 0.5, "sample_rate": 0.01, "steps": 2000}')
    _, files = write(setting, tmp_path / "report.html")
    text = files[0].read_text()
    assert text.index('data-threat="membership"') < text.index('id="weaker"')
