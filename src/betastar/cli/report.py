"""`betastar report`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from betastar.cli.options import option
from betastar.runs.reading import Json


@dataclass(frozen=True)
class ReportOptions:
    source: str = option(help="Folder of a run, JSON file of a setting, or - for stdin.", argument="RUN|JSON")
    output: Path | None = option(None, "File or folder.", "in the run's folder or beside the JSON")
    format: str | None = None
    list_records: bool = False
    force: bool = False
    json: bool = option(False, "Print the verdict as JSON.")


def report(options: ReportOptions) -> None:
    """Write a report for people: verdict, figures, the table against (ε, δ), what is proved, and how to repeat it.

    \b
    Examples:
      betastar report runs/adult
      betastar report runs/adult -o adult.md --list-records
      echo '{"noise_multiplier": 2, "sample_rate": 0.01, "steps": 1000}' | betastar report - -o setting.html
    """
    from betastar.cli import printing
    from betastar.report.facts import Against
    from betastar.report.report import write
    from betastar.report.statement import verdicts

    with printing.phase("computing the certified curves, and drawing the figures"):
        facts, files = write(options.source, options.output, options.format, options.list_records, options.force)
    said = verdicts(facts)
    if not options.json:
        print(f"{said[0].band.capitalize()}: {said[0].sentence}\nThe report is in {files[0]}.")
        return

    def told(one: Against) -> Json:
        return {"threat": one.name, "kind": one.kind, "bayes_security": {"lower": one.lower, "estimate": one.estimate}}

    against = zip((facts.membership, *facts.attributes), said, strict=True)
    every = [told(one) | {"band": verdict.band} for one, verdict in against]
    answer = {"files": [str(file) for file in files], "finished": facts.finished, "proof": facts.proof, "threats": every}
    print(json.dumps(answer, ensure_ascii=False))
