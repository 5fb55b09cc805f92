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
    public: bool = option(False, "Leave out everything that depends on the training records, so that it may be published.")
    author: str | None = None
    purpose: str | None = None
    target: str | None = option(None, 'What the advice is to reach, such as "bayes_security>=0.95".', "the next band")
    list_records: bool = False
    force: bool = False
    json: bool = option(False, "Print the verdict as JSON.")


def report(options: ReportOptions) -> None:
    """Write a report for people: verdict, figures, the table against (ε, δ), what is proved, and how to repeat it.

    \b
    Examples:
      betastar report runs/adult
      betastar report runs/adult -o adult.md --list-records
      betastar report runs/adult --public --author "A. Person" --purpose "before the model is given to partners"
      echo '{"noise_multiplier": 2, "sample_rate": 0.01, "steps": 1000}' | betastar report - -o setting.html
    """
    from betastar.calibrate import Target
    from betastar.cli import printing
    from betastar.report.facts import Against
    from betastar.report.next_steps import next_steps
    from betastar.report.report import write
    from betastar.report.statement import verdicts

    target = None if options.target is None else Target.parse(options.target)
    with printing.phase("computing the certified curves, and drawing the figures"):
        facts, files = write(
            options.source,
            options.output,
            options.format,
            options.list_records,
            options.force,
            options.public,
            options.author or "",
            options.purpose or "",
            target,
        )
    said = verdicts(facts)
    if not options.json:
        print(f"{said[0].band.capitalize()}: {said[0].sentence}\nThe report is in {files[0]}.")
        return

    def told(one: Against) -> Json:
        return {"threat": one.name, "kind": one.kind, "bayes_security": {"lower": one.lower, "estimate": one.estimate}}

    people = [] if facts.person is None else [facts.person]
    against = zip((facts.membership, *people, *facts.attributes), said, strict=True)
    every = [told(one) | {"band": verdict.band} for one, verdict in against]
    advised = [{"threat": step.threat, **step.advice.as_json()} for step in next_steps(facts, target)]
    answer = {
        "files": [str(file) for file in files],
        "public": options.public,
        "finished": facts.finished,
        "proof": facts.proof,
        "threats": every,
        "advice": advised,
    }
    print(json.dumps(answer, ensure_ascii=False))
