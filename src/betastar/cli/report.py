"""`betastar report`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from betastar.cli.options import Force, option


def report(
    source: Annotated[str, typer.Argument(metavar="RUN|JSON", help="Folder of a run, JSON file of a setting, or - for stdin.")],
    output: Annotated[Path | None, option("output", "File or folder.", "in the run's folder or beside the JSON")] = None,
    kind: Annotated[str | None, option("format")] = None,
    list_records: Annotated[bool, option("list_records")] = False,
    force: Force = False,
    as_json: Annotated[bool, option("json", "Print the verdict as JSON.")] = False,
) -> None:
    """Write a report for people: verdict, figures, the table against (ε, δ), what is proved, and how to repeat it.

    betastar report runs/adult

    betastar report runs/adult -o adult.md --list-records

    echo '{"noise_multiplier": 2, "sample_rate": 0.01, "steps": 1000}' | betastar report - -o setting.html
    """
    from betastar.report.facts import Against
    from betastar.report.report import write
    from betastar.report.statement import verdicts

    facts, files = write(source, output, kind, list_records, force)
    found = verdicts(facts)
    if not as_json:
        print(f"{found[0].band.capitalize()}: {found[0].sentence}\nThe report is in {files[0]}.")
        return

    def told(one: Against) -> dict[str, Any]:
        return {"threat": one.name, "kind": one.kind, "bayes_security": {"lower": one.lower, "estimate": one.attained}}

    every = [told(one) | {"band": said.band} for one, said in zip((facts.membership, *facts.attributes), found, strict=True)]
    answer = {"files": [str(file) for file in files], "finished": facts.finished, "proof": facts.proof, "threats": every}
    print(json.dumps(answer, ensure_ascii=False))
