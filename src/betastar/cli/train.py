"""The command `betastar train`: what it takes, what it shows while it works, and what it prints in the end."""

from __future__ import annotations

import json as json_format
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from betastar.cli import options as opt
from betastar.cli import printing
from betastar.cli.answers import rows as table_rows
from betastar.quality import main_figure, quality_sentence
from betastar.rounding import down
from betastar.runs.config import SAMPLINGS
from betastar.runs.reading import Json

if TYPE_CHECKING:
    from betastar.report.facts import Facts
    from betastar.report.statement import Verdict

#: Where the trade-off curve of membership is read off, and δ of its ε.
FPR, DELTA = 0.01, 1e-5


_table, _training, _protection, _models = map(opt.of, ("Table", "Training", "Protection", "Several models"))


def train(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the run; must be new unless --resume is given.")],
    study: Annotated[str, typer.Argument(metavar="TABLE", help="CSV or Parquet file, or 'adult', which is included.")] = "adult",
    label: Annotated[str | None, _table("--label", help="The column that the model predicts.")] = None,
    label_range: Annotated[
        str | None,
        _table(
            "--label-range",
            metavar="LOW:HIGH",
            help="The label is a number in this range, such as 0:500000, which you know without looking at the records. "
            "[default: a number if the label has more than 20 different numbers, else a class]",
        ),
    ] = None,
    sensitive: Annotated[
        str | None, _table("--sensitive", help="The column whose value the attacker guesses. [default: age, for adult]")
    ] = None,
    value: Annotated[
        list[str] | None,
        _table("--value", help="A value of the sensitive column (may be repeated), or its range such as 17:90. [default: all]"),
    ] = None,
    along: Annotated[
        list[str] | None,
        _table("--with", help="A column that restates the sensitive one: the two change together (may be repeated)."),
    ] = None,
    drop: Annotated[list[str] | None, _table("--drop", help="A column that is left out (may be repeated).")] = None,
    person: Annotated[
        str | None,
        _table("--person", help="The column that identifies the person. The risk of a person is reported, too."),
    ] = None,
    max_records_per_person: Annotated[
        int | None,
        _table(
            "--max-records-per-person",
            min=1,
            help="With --person: train on at most this many records of a person, chosen at random.",
        ),
    ] = None,
    epochs: Annotated[int | None, _training("--epochs", min=1, help="Number of epochs. [default: 10; adult: 30]")] = None,
    batch_size: Annotated[
        int | None,
        _training("--batch-size", "--batch", min=1, help="Batch size. [default: a fiftieth, 8 to 256; adult: 256]"),
    ] = None,
    noise_multiplier: Annotated[
        float | None,
        _training(
            "--noise-multiplier",
            "--noise",
            min=0.01,
            help="Noise multiplier: standard deviation / clipping norm. [default: 1; adult: 3.51]",
        ),
    ] = None,
    max_grad_norm: Annotated[
        float | None, _training("--max-grad-norm", "--clip", min=1e-6, help="Clipping norm. [default: 1; adult: 2]")
    ] = None,
    learning_rate: Annotated[
        float | None, _training("--learning-rate", "--lr", min=0.0, help="Learning rate. [default: 0.001; adult: 0.0001]")
    ] = None,
    hidden: Annotated[
        list[int] | None,
        _training("--hidden", min=1, help="Width of a hidden layer (may be repeated, for several layers). [default: 128]"),
    ] = None,
    sampling: Annotated[
        str,
        _training("--sampling", help="How batches are drawn: poisson, fixed-size or balls-in-bins.", **opt.one_of(SAMPLINGS)),
    ] = "poisson",
    seed: Annotated[
        list[int] | None,
        _training(
            "--seed",
            min=0,
            help="Seed of split, weights, sampling and noise (may be repeated: a model for each, in its own folder). Anyone who "
            "knows it can compute the noise. [default: drawn at random, deleted when the run is complete]",
        ),
    ] = None,
    target: Annotated[
        str | None,
        _protection(
            "--target",
            metavar="LIMIT",
            help='What must hold against membership inference, such as "bayes_security>=0.95" or "success<=52%"; the noise '
            "follows from it.",
        ),
    ] = None,
    attribute_target: Annotated[
        str | None,
        _protection(
            "--attribute-target",
            metavar="LIMIT",
            help="What must hold against inference of the sensitive attribute. Gap clipping keeps the gradients of its values "
            "close at every step, so that this is proved in advance.",
        ),
    ] = None,
    scope: Annotated[
        str,
        _protection(
            "--scope",
            metavar="SCOPE",
            help="Without --attribute-target: whose gradients are measured, batch (those of the batch, an estimate) or dataset "
            "(those of all records, slow). batch/20 measures every 20th step; without a number, large tables are measured at "
            "fewer steps.",
        ),
    ] = "batch",
    trials: Annotated[
        int | None,
        _models(
            "--trials",
            help="Train this many models with parameters drawn at random (--search), keep the best one on the test records, and "
            "delete the others. All figures count the choice.",
        ),
    ] = None,
    search: Annotated[
        list[str] | None,
        _models(
            "--search",
            metavar="SPACE",
            help="With --trials: what a parameter is drawn from for each model, such as lr=1e-4:1e-2log, hidden=32,64,128x64 "
            "or clip=0.5,1,2 (may be repeated).",
        ),
    ] = None,
    jobs: Annotated[
        int, _models("--jobs", help="Number of models trained at a time (several seeds, or --trials); -1 for all cores.")
    ] = 1,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run that is in the folder.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print status and last epoch as JSON.")] = False,
) -> None:
    """Train with DP-SGD, and report what the model reveals.

    \b
    Examples:
      betastar train -o runs/adult
      betastar train people.csv --label income --sensitive age --value 17:90 \\
        -o runs/people
      betastar train people.csv --label income --sensitive age \\
        --target "success<=52%" -o runs/people
      betastar train houses.csv --label price --label-range 0:2000000 \\
        --sensitive rooms -o runs/houses
      betastar train adult --seed 0 --seed 1 --seed 2 --jobs 2 -o runs/three
      betastar train people.csv --label income --sensitive age --trials 20 \\
        --search lr=1e-4:1e-2log -o runs/best
      betastar train adult --sensitive sex --with relationship \\
        --attribute-target "bayes_security>=0.995" -o runs/protected
    """
    given = dict(locals())
    with printing.phase("starting"):
        from betastar.report import model_card
        from betastar.report.facts import load
        from betastar.report.report import summarise
        from betastar.runs.config import Config
        from betastar.runs.folder import RunFolder
        from betastar.runs.loop import seed_folders, train_seeds
        from betastar.runs.loop import train as run
        from betastar.runs.reading import StudyError
        from betastar.runs.search import search as search_best
        from betastar.runs.tables import range_of

    if trials is None and search:
        raise StudyError("--search goes with --trials.")
    seeds = seed or []
    if trials is not None and len(seeds) > 1:
        raise StudyError("--trials keeps the best of several models, several seeds keep all: choose one.")
    measured, slash, every = scope.partition("/")
    if slash and not (every.isdigit() and int(every)):
        raise StudyError(f"--scope must be batch, dataset, or one of them at every k-th step as in dataset/20, got {scope!r}.")
    given |= {"values": value, "seed": seeds[0] if len(seeds) == 1 else None, "scope": measured, "every": int(every or 0) or None}
    given["label_range"] = None if label_range is None else range_of("--label-range", label_range)
    known: dict[str, Any] = {name: tuple(one) if isinstance(one, list) else one for name, one in given.items() if one is not None}
    config = Config(**{name: one for name, one in known.items() if name in Config.__dataclass_fields__})
    if len(seeds) > 1:
        folders = seed_folders(output, seeds)
        with printing.phase(f"training {len(folders)} models"):
            train_seeds(config, output, seeds, jobs, resume)
    else:
        folders = [output]
        with one_run() as tell:
            run(config, output, resume, tell) if trials is None else search_best(config, output, resume, jobs, tell)
    with printing.phase("drawing the figures of the summary, and writing the model card"):
        told = [(folder, load(folder)) for folder in folders]
        for folder, facts in told:
            summarise(folder, facts)
            model_card.write(folder, facts)
    if not json:
        show_several(output, told) if len(folders) > 1 else show(*told[0])
        return
    answers = [
        {"folder": str(folder), **(one := RunFolder(folder)).status.to_json(), "proof": facts.proof, "last": one.epochs[-1]}
        for folder, facts in told
    ]
    print(json_format.dumps({"runs": answers} if len(folders) > 1 else answers[0]))


# ---- While it works, on a terminal only


@contextmanager
def one_run() -> Iterator[Callable[[Json], None]]:
    """A context whose value is called with what a training tells: the phase that begins, each step, and each epoch.

    The first lines say what is done; a bar with the steps of all epochs and the time left follows when the number of steps is
    known.
    """
    from rich.text import Text

    lines: list[str] = []
    quality = ""
    with printing.progress(lambda: [Text(line, style="dim", overflow="ellipsis", no_wrap=True) for line in lines]) as bar:
        task = bar.add_task("starting", total=None)

        def tell(news: Json) -> None:
            nonlocal quality
            if "told" in news:
                for line in news["told"]:
                    bar.console.print(Text(line))
            elif "phase" in news:
                bar.update(task, description=news["phase"], refresh=True)  # before it starts
            elif news.get("finished"):
                figure = main_figure(news)
                quality = f", {figure.title} {figure.shown(news[figure.name])} after epoch {news['epoch']}"
                quality += f" ({figure.shown(news[figure.baseline])} without a model)"
            else:
                lines[:] = _lines(news, quality)
                bar.update(task, description="training, steps", total=news["steps"], completed=news["step"])

        yield tell


def _lines(news: Json, quality: str) -> list[str]:
    """The figures of a step, in lines that fit a terminal of 80 columns."""
    lines = [f"epoch {news['epoch']} of {news['epochs']}, loss {news['loss']:.3f}{quality}"]
    if "attribute" in news:
        beta = f"β* so far ≈ {down(news['membership'], 3)} (membership), {down(news['attribute'], 3)} ({news['secret']})"
        lines.append(beta)
    return lines


# ---- In the end


def show(folder: Path, facts: Facts) -> None:
    """Print the end of a run."""
    from betastar.report import model_card
    from betastar.report.statement import verdicts
    from betastar.runs.folder import ENCODER, MODEL

    # The files of a run that people look for, and what is in them.
    files = (
        (f"{MODEL}, {ENCODER}", "the model, and how a table becomes its input"),
        (model_card.CARD, "for anyone who gets the model"),
        ("summary.md", "this summary in full, with figures; for you"),
    )
    console, said = printing.console(), verdicts(facts)
    _verdict(said)
    printing.table(console, ("", "", "rely on", "estimate", "without a model"), _rows(facts, said), left=2)
    for line in _remarks(facts):
        console.print(line)
    console.print(f"\nIn {folder}:", soft_wrap=True)
    width = max(len(name) for name, _ in files)
    for name, what in files:
        console.print(f"  {name:{width}}  {what}", soft_wrap=True)
    again = " --force" if (folder / "report.html").exists() else ""
    _next(
        (f"report {shlex.quote(str(folder))}{again}", "for the person who decides"),
        (f"predict {shlex.quote(str(folder))} TABLE.csv", "use the model"),
    )


def show_several(folder: Path, runs: Sequence[tuple[Path, Facts]]) -> None:
    """Print the end of several runs that differ in their seed: they have one figure of membership."""
    from betastar.report.statement import MEASURED, verdicts

    console = printing.console()
    said = [verdicts(facts) for _, facts in runs]
    _verdict([one for one in said[0] if one.kind not in MEASURED])
    names = [printing.printable(one.name) for one in said[0] if one.kind != "worst"]
    figure = main_figure(runs[0][1].entries[-1])
    heads = ("run", f"{figure.title} on test records", "without a model", *(f"β* of {name}" for name in names))
    rows = [
        (
            path.name,
            *(figure.shown(facts.entries[-1][name]) for name in (figure.name, figure.baseline)),
            *(f"{'≈ ' if one.sign == '≈' else ''}{one.beta}" for one in each if one.kind != "worst"),
        )
        for (path, facts), each in zip(runs, said, strict=True)
    ]
    printing.table(console, heads, rows)
    console.print(f"\nEach run is a folder in {folder}.", soft_wrap=True)
    _next((f"report {shlex.quote(str(runs[0][0]))}", "one of them, for the person who decides"))


def _verdict(said: Sequence[Verdict]) -> None:
    console = printing.console()
    for one in said:
        console.print(printing.printable(one.line), style="bold")
    console.print()


def _rows(facts: Facts, said: Sequence[Verdict]) -> list[tuple[str, ...]]:
    """Each metric of each threat, as `analyze` prints it; the numbers are those of the report."""
    rows: list[tuple[str, ...]] = []
    for one in said:
        answer: dict[str, Any] = {
            "bayes_security": {"lower": one.lower, "estimate": one.estimate or 0.0},
            "success": {"prior": 0.5, "upper": 1 - one.lower / 2, "estimate": 1 - (one.estimate or 0.0) / 2},
        }
        if one is said[0]:
            answer["tpr"] = {"fpr": FPR, **_ends(facts.membership.certified.tpr(FPR))}
            answer["epsilon"] = {"delta": DELTA, **_ends(facts.membership.certified.epsilon(DELTA))}
        about = f"a person, {facts.records_per_person} records" if (one.name, one.kind) == ("person", "worst") else one.name
        for i, (title, relied, estimate, guessing) in enumerate(table_rows(answer, short=True)):
            shown = "" if one.estimate is None else estimate
            word = "" if i else printing.printable(f"{about}, {one.word}")
            rows.append((word, title, f"{'≈ ' if one.sign == '≈' else ''}{relied}", shown, guessing))
    return rows


def _ends(bound: Any) -> dict[str, float]:
    return {"upper": float(bound.upper), "estimate": float(bound.estimate)}


def _remarks(facts: Facts) -> list[str]:
    """What belongs beside the numbers, in few words; the summary has all of them."""
    from betastar.report.statement import notices

    lines = []
    batch = any(one.kind == "batch" for one in facts.attributes)
    if batch:
        lines.append("≈ is an estimate from the sampled records, for the trainer's eyes only.")
    if facts.entries:
        last = facts.entries[-1]
        figures: dict[str, float] = {
            name: last[name] for name in ("accuracy", "baseline", "rmse", "baseline_rmse") if name in last
        }
        lines.append(f"{quality_sentence(figures, 'the test records')}.")
    told = notices(replace(facts, attributes=(), exposures={})) if batch else notices(facts)
    beginnings = [one.brief[0].lower() + one.brief[1:] for one in told]
    if beginnings:
        lines.append(printing.printable(f"Read in summary.md: {'; '.join(beginnings)}."))
    return lines


def _next(*commands: tuple[str, str]) -> None:
    """The commands that one may want next, each on a line of its own so that it can be copied."""
    console, name = printing.console(), _command()
    console.print("Next:")
    written = [(f"  {name} {command}", what) for command, what in commands]
    width = max(len(line) for line, _ in written)
    for line, what in written:
        explained = f"{line:{width}}  # {what}"
        console.print(explained if len(explained) <= printing.WIDTH else line, soft_wrap=True)


def _command() -> str:
    """The command as it can be typed here: by its path if it is not the one that a shell would find."""
    used, known = Path(sys.argv[0]), shutil.which("betastar")
    if used.name != "betastar" or not used.is_file() or (known is not None and Path(known).samefile(used)):
        return "betastar"
    return shlex.quote(min(str(used), os.path.relpath(used), key=len))
