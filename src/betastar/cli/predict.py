"""The command `betastar predict`."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from betastar import files
from betastar.cli.options import option
from betastar.quality import quality_sentence

if TYPE_CHECKING:
    from betastar.runs.prediction import Prediction


@dataclass(frozen=True)
class PredictOptions:
    run: Path = option(help="Folder of a complete run.", argument="RUN")
    table: str = option(
        help="CSV or Parquet table with the columns of the training, or 'adult'.",
        argument="TABLE",
    )
    output: Path | None = option(None, "CSV file for the predictions.", "standard output")
    drop: tuple[str, ...] = ()
    force: bool = False
    json: bool = option(False, "Print one JSON object; with --output, without the predictions.")


def predict(options: PredictOptions) -> None:
    """Predict with the model of a run: a line for each record of a table, with the class and the model's probability of it.

    Of a label that is a number, the line has the number. If the table has the column of the label, it is told how good the
    predictions are.

    \b
    Examples:
      betastar predict runs/people people.csv -o predictions.csv
      betastar predict runs/demo adult > predictions.csv
    """
    from betastar.runs.prediction import predict as apply

    output = options.output
    if output is not None:
        files.check(output)
        if output.exists() and not options.force:
            raise ValueError(f"--output {str(output)!r} is there already; choose another name, or write over it with --force.")
        if not output.parent.is_dir():
            raise ValueError(f"--output must be in a folder that exists, got {str(output)!r}.")
    told = apply(options.run, options.table, options.drop)
    if output is not None:
        files.write(output, told.predictions.to_csv(index=False, lineterminator="\n"))
    if options.json:
        print(json.dumps(_object(told, output), ensure_ascii=False))
    elif output is None:
        sys.stdout.write(told.predictions.to_csv(index=False, lineterminator="\n"))
    lines = "\n".join(_sentences(told, output))
    print(lines, file=sys.stdout if output is not None and not options.json else sys.stderr)


def _object(told: Prediction, output: Path | None) -> dict[str, object]:
    names = ("rmse", "mae", "r2") if "probability" not in told.predictions else ("accuracy",)
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
