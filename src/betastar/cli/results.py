"""The commands that use a run: predict and report."""

from __future__ import annotations

import json as json_format
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from betastar import files
from betastar.calibrate import Target
from betastar.cli import options as opt
from betastar.cli import printing
from betastar.quality import quality_sentence

if TYPE_CHECKING:
    from betastar.runs.prediction import Prediction


def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a complete run.")],
    table: Annotated[
        str, typer.Argument(metavar="TABLE", help="CSV or Parquet table with the columns of the training, or 'adult'.")
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="CSV file for the predictions. [default: standard output]")
    ] = None,
    drop: Annotated[list[str] | None, typer.Option("--drop", help="A column that is left out (may be repeated).")] = None,
    force: opt.Force = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object; with --output, without the predictions.")] = False,
) -> None:
    """Predict with the model of a run.

    The result has a line for each record of a table: the class and its probability, or the number. If the table has the column
    of the label, the command says how good the predictions are, beside always guessing the most frequent label (or the mean).

    \b
    Examples:
      betastar predict runs/people people.csv -o predictions.csv
      betastar predict runs/demo adult > predictions.csv
    """
    from betastar.runs.prediction import predict as apply

    if output is not None:
        printing.check_file("--output", output, force)
    told = apply(run, table, tuple(drop or ()))
    if output is not None:
        files.write(output, told.as_csv())
    if json:
        print(json_format.dumps(_object(told, output), ensure_ascii=False))
    elif output is None:
        sys.stdout.write(told.as_csv())
    lines = "\n".join(_sentences(told, output))
    print(lines, file=sys.stdout if output is not None and not json else sys.stderr)


def _object(told: Prediction, output: Path | None) -> dict[str, object]:
    numbers = "probability" not in told.predictions
    names = ("rmse", "mae", "r2", "baseline_rmse", "baseline_mae") if numbers else ("accuracy", "baseline")
    answer: dict[str, object] = {
        "label": told.label,
        "records": len(told.predictions),
        **{name: told.quality.get(name) for name in names},
        "tested": told.tested,
        **{f"test_{name}": told.test_quality.get(name) for name in names},
    }
    kept = {"predictions": told.predictions.to_dict("records")} if output is None else {"output": str(output)}
    return answer | kept


def _sentences(told: Prediction, output: Path | None) -> list[str]:
    number = len(told.predictions)
    where = "" if output is None else f": {output}"
    lines = [f"Predicted {told.label} of {number:,} {'record' if number == 1 else 'records'}{where}."]
    if told.quality:
        lines.append(f"{quality_sentence(told.quality, 'the records with a label')}.")
    if told.test_quality:
        said = quality_sentence(told.test_quality, f"the {told.tested:,} records that it kept for testing")
        lines.append(f"The run was trained on this table. {said}. That is what to expect of new records.")
    return lines


def report(
    source: Annotated[str, typer.Argument(metavar="RUN|JSON", help="Folder of a run, JSON file of a setting, or - for stdin.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="File or folder; a .md file has its figures beside it. [default: in the run's folder or beside the JSON]",
        ),
    ] = None,
    public: Annotated[
        bool,
        typer.Option("--public", help="Leave out everything that depends on the training records, so that it may be published."),
    ] = False,
    author: Annotated[str, typer.Option("--author", metavar="NAME", help="Who makes the report.")] = "",
    purpose: Annotated[str, typer.Option("--purpose", metavar="TEXT", help="What the report is for.")] = "",
    target: Annotated[
        str | None,
        typer.Option("--target", help='Your own threshold, such as "bayes_security>=0.95". [default: bands, as an example]'),
    ] = None,
    prior: Annotated[
        float | None,
        typer.Option("--prior", metavar="P", help="Probability of one of the attribute's two values before the attack."),
    ] = None,
    list_records: Annotated[bool, typer.Option("--list-records", help="List the most exposed records by their index.")] = False,
    force: opt.Force = False,
    json: Annotated[bool, typer.Option("--json", help="Print the verdicts as JSON.")] = False,
) -> None:
    """Write a report with a verdict on each threat.

    An appendix has figures, numbers and the commands to repeat them.

    \b
    Examples:
      betastar report runs/adult
      betastar report runs/adult -o adult.md --list-records
      betastar report runs/adult --public --author "A. Person" \\
        --purpose "before the model is given to partners"
      echo '{"noise_multiplier": 2, "sample_rate": 0.01, "steps": 1000}' \\
        | betastar report - -o setting.html
    """
    from betastar.report import model_card
    from betastar.report.report import write
    from betastar.report.statement import next_steps, verdicts

    wanted = None if target is None else Target.parse(target)
    with printing.phase("computing the certified curves, and drawing the figures"):
        facts, written = write(source, output, None, list_records, force, public, author, purpose, wanted, prior)
        if facts.private:  # `betastar train` writes the card of its model itself
            written.append(model_card.write(source))
    said = verdicts(facts, wanted)
    if not json:
        where = f"The report is in {written[0]}" + (f", the model card in {written[-1]}." if facts.private else ".")
        print("\n".join([*(printing.printable(f"{one.line} {one.sentence}") for one in said), where]))
        return
    answer = {
        "files": [str(file) for file in written],
        "public": public,
        "finished": facts.finished,
        "proof": facts.proof,
        "target": None if wanted is None else str(wanted),
        "threats": [one.as_json() for one in said],
        "advice": [{"threat": title, **advice.as_json()} for title, advice in next_steps(facts, wanted)],
    }
    print(json_format.dumps(answer, ensure_ascii=False))
