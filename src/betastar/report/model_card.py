"""The model card of a run: what was trained, with what, risk and limits. Nothing in it was measured on training records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from betastar.files import write_all
from betastar.quality import quality_sentence
from betastar.report import statement
from betastar.report.facts import Facts, load
from betastar.report.report import _environment
from betastar.rounding import plain
from betastar.runs.encoder import TableEncoder
from betastar.runs.folder import RunFolder

CARD = "model-card.md"
#: The most classes that are named.
CLASSES = 10
#: Parameters of the training, by the names that they have in a run.
PARAMETERS = {
    "records": "training records",
    "epochs": "epochs",
    "batch_size": "batch size, on average",
    "sample_rate": "probability of a record at each step",
    "steps": "steps",
    "noise_multiplier": "noise multiplier",
    "max_grad_norm": "clipping norm",
    "learning_rate": "learning rate",
}
#: The measures of quality that the card states, for classes and for numbers.
JUDGED = ("accuracy", "baseline", "rmse", "mae", "r2", "baseline_rmse", "baseline_mae")
LIMITS = (
    "The attacker of these figures knows all other records, the algorithm and every update. Those who have the model know less.",
    "The figures are about one record. A person with several records in the table is exposed more.",
    "They do not cover other runs on the same records, among them those by which the parameters were chosen, the preparation of "
    "the data, and what a model that predicts well tells about the population, members or not.",
    "How good a model is on records of the same table says little about other tables, other times, or small groups of people.",
)


#: Instead of the limit on other runs.
TRIED = (
    "The figures count that this model is the best of {}, if nothing of the others is ever seen. They do not cover further runs "
    "on the same records, the test records, by which the best one was chosen, the preparation of the data, and what a model that "
    "predicts well tells about the population, members or not."
)


def write(path: str | Path, facts: Facts | None = None) -> Path:
    """Write the model card of a complete run, or of a `PrivateTraining` that was saved, into its folder, over an earlier one."""
    folder, facts = RunFolder(path), load(path) if facts is None else facts
    write_all({folder / CARD: render(facts, None if facts.private else folder.encoder)})
    return folder / CARD


def render(facts: Facts, encoder: TableEncoder | None) -> str:
    """The text of the card. Only a model that `betastar train` trained has an encoder."""
    proved = tuple(one for one in facts.attributes if one.kind == "proved")
    facts = replace(facts, attributes=proved, exposures={}, members={}, restated=())
    hidden = facts.parameters.get("hidden", ())
    return (
        _environment("md")
        .get_template("model_card.md.j2")
        .render(
            facts=facts,
            encoder=encoder,
            model=None if encoder is None else encoder.model_words(tuple(hidden)),
            predicted=None if encoder is None else _predicted(encoder),
            scale=None if encoder is None else encoder.label_scale,
            number=plain,
            notices=[*(one.text for one in statement.notices(facts)), *_guessable(facts)],
            verdicts=statement.verdicts(facts),
            parameters=_parameters(facts),
            quality=_quality(facts),
            limits=_limits(facts),
        )
    )


def _limits(facts: Facts) -> list[str]:
    about, persons, others, quality = LIMITS
    others = others if facts.trials is None else TRIED.format(facts.trials)
    several = facts.private and facts.records_per_person not in (None, 1)  # a figure is about them
    return [about, *([] if several else [persons]), others, *([] if facts.private else [quality])]


def _predicted(encoder: TableEncoder) -> str:
    """What the model predicts, in words."""
    if encoder.label_scale is not None:
        return "a number"
    classes = encoder.classes
    return ", ".join(classes) if len(classes) <= CLASSES else f"one of {len(classes)} classes"


def _quality(facts: Facts) -> str | None:
    """How good the model is on the test records. The baseline follows from the test records, too."""
    if not facts.entries:
        return None
    figures: dict[str, float] = {name: facts.entries[-1][name] for name in JUDGED if name in facts.entries[-1]}
    return quality_sentence(figures, "the test records")


def _guessable(facts: Facts) -> list[str]:
    """A notice about a seed that somebody can find by trying."""
    text = f"The noise can be computed from the seed of the run. {statement.SEEDS['guessable']}"
    return [text] if facts.seed == "guessable" else []


def _parameters(facts: Facts) -> list[tuple[str, str]]:
    known = facts.parameters
    given = [(title, known[name]) for name, title in PARAMETERS.items() if name in known]
    rows = [(title, f"{value:,}" if isinstance(value, int) else plain(value)) for title, value in given]
    if (plan := facts.groups) is not None:
        rows += [
            (
                f"group {group!r}",
                f"probability {plain(plan.rates[group])}, clipping norm {plain(plan.norms[group])} of the largest",
            )
            for group in plan.rates
        ]
    return [*rows, ("made with", facts.versions)] if facts.versions else rows
