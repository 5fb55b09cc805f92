"""The command `betastar train`: what it takes, what it shows while it works, and what it prints in the end."""

from __future__ import annotations

import json as json_format
import os
import shlex
import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
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
    from rich.console import RenderableType
    from rich.progress import Progress

    from betastar.report.facts import Facts
    from betastar.report.statement import Verdict

#: Where the trade-off curve of membership is read off, and δ of its ε.
FPR, DELTA = 0.01, 1e-5
#: Seconds between two looks at the folders of several seeds.
LOOK = 1.0


def train(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the run; must be new unless --resume is given.")],
    study: Annotated[str, typer.Argument(metavar="study", help="'adult', or the path of a CSV or Parquet table.")] = "adult",
    label: Annotated[str | None, typer.Option("--label", help="Own table: the column that the model predicts.")] = None,
    task: Annotated[
        str | None,
        typer.Option(
            "--task",
            help="Own table: classification (the label is one of some classes) or regression (the label is a number). [default: "
            "regression, if the label has more than 20 different numbers]",
        ),
    ] = None,
    label_range: Annotated[
        str | None,
        typer.Option(
            "--label-range",
            metavar="LOW:HIGH",
            help="Own table, regression: the range of the label, such as 0:500000, which you know without looking at the "
            "records. The label is scaled by it, and limited to it in training.",
        ),
    ] = None,
    sensitive: Annotated[
        str | None,
        typer.Option("--sensitive", help="The sensitive column, whose value the attacker guesses. [default: age, for adult]"),
    ] = None,
    value: Annotated[
        list[str] | None,
        typer.Option(
            "--value",
            help="Own table: a value that the sensitive column may have (may be repeated). [default: all in the table]",
        ),
    ] = None,
    between: Annotated[
        str | None, typer.Option("--between", help="Own table: the range of the sensitive numbers, such as 17:90.")
    ] = None,
    along: Annotated[
        list[str] | None,
        typer.Option(
            "--with", help="A column that restates the sensitive one, so that the two change together (may be repeated)."
        ),
    ] = None,
    drop: Annotated[list[str] | None, typer.Option("--drop", help="A column that is left out (may be repeated).")] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option("--keep", help="Own table: a feature although it differs in each record (may be repeated)."),
    ] = None,
    person: Annotated[
        str | None,
        typer.Option(
            "--person",
            help="Own table: the column that says whose record it is. It is no feature; the risk of a person is reported beside "
            "that of a record.",
        ),
    ] = None,
    max_records_per_person: Annotated[
        int | None,
        typer.Option(
            "--max-records-per-person",
            min=1,
            help="With --person: train on at most this many records of a person, chosen at random.",
        ),
    ] = None,
    public: Annotated[
        str | None,
        typer.Option(
            "--public",
            help="Own table, with --gap: a table of public records, which tells how frequent the sensitive values are.",
        ),
    ] = None,
    epochs: Annotated[int | None, typer.Option("--epochs", min=1, help="Number of epochs. [default: the study's]")] = None,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", "--batch", min=1, help="Batch size. [default: the study's]")
    ] = None,
    noise_multiplier: Annotated[
        float | None,
        typer.Option(
            "--noise-multiplier",
            "--noise",
            min=0.01,
            help="Noise multiplier: standard deviation / clipping norm. [default: the study's]",
        ),
    ] = None,
    max_grad_norm: Annotated[
        float | None, typer.Option("--max-grad-norm", "--clip", min=1e-6, help="Clipping norm. [default: the study's]")
    ] = None,
    sampling: Annotated[
        str,
        typer.Option(
            "--sampling",
            help="How batches are drawn: poisson, fixed-size or balls-in-bins.",
            **opt.one_of(SAMPLINGS),
        ),
    ] = "poisson",
    times_per_epoch: opt.TimesPerEpoch = 1,
    max_batch_size: Annotated[
        int | None,
        typer.Option(
            "--max-batch-size",
            "--max-batch",
            min=1,
            help="With Poisson sampling: of a larger batch, this many records are kept at random.",
        ),
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option("--learning-rate", "--lr", min=0.0, help="Learning rate. [default: the study's]")
    ] = None,
    hidden: Annotated[
        list[int] | None,
        typer.Option(
            "--hidden", min=1, help="Width of a hidden layer (may be repeated, for several layers). [default: the study's]"
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed",
            min=0,
            help="Seed of split, weights, sampling and noise. Anyone who knows it can compute the noise. [default: drawn at "
            "random, and deleted when the run is complete]",
        ),
    ] = None,
    scope: Annotated[
        str | None,
        typer.Option(
            "--scope",
            help="Whose gradients are measured: batch (those of the batch, an estimate) or dataset (those of all records, slow). "
            "[default: batch]",
        ),
    ] = None,
    every: Annotated[int, typer.Option("--every", min=1, help="Measure at every k-th step.")] = 1,
    diameter: Annotated[
        str,
        typer.Option(
            "--diameter",
            help="How the distance between the values is measured: exact (the farthest two), or from above by the centroid.",
        ),
    ] = "exact",
    approximate: Annotated[
        bool, typer.Option("--approximate/--no-approximate", help="Measure the paper's approximation as well.")
    ] = False,
    target_beta: Annotated[
        float | None,
        typer.Option(
            "--target-beta",
            help="Stop before β* against attribute inference falls below this number; all records are measured.",
        ),
    ] = None,
    gap: Annotated[
        float | None,
        typer.Option(
            "--gap",
            help="Gap clipping: keep the gradients of the sensitive values at most this far apart at every step, in clipping "
            "norms (0 to 2); β* is then proved in advance.",
        ),
    ] = None,
    target_attribute_beta: Annotated[
        float | None,
        typer.Option(
            "--target-attribute-beta", help="Gap clipping, with the gap that gives this β* against attribute inference."
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option("--seeds", min=1, help="Train with this many seeds, 0, 1, …, each in a folder of its own.")
    ] = None,
    trials: Annotated[
        float | None,
        typer.Option(
            "--trials",
            help="Tune: train this many models with parameters drawn at random (--search), keep the best one on the test "
            "records, and delete the others. All figures count the choice.",
        ),
    ] = None,
    trials_law: opt.TrialsLaw = "fixed",
    search: Annotated[
        list[str] | None,
        typer.Option(
            "--search",
            metavar="SPACE",
            help="With --trials: what a parameter is drawn from for each model, such as lr=1e-4:1e-2log, hidden=32,64,128x64 "
            "or clip=0.5,1,2 (may be repeated).",
        ),
    ] = None,
    jobs: Annotated[
        int, typer.Option("--jobs", help="Number of runs at a time (with --seeds or --trials); -1 for all cores.")
    ] = 1,
    backend: Annotated[
        str | None,
        typer.Option(
            "--backend", help="The joblib backend for --seeds and --trials: loky, threading, dask or ray. [default: loky]"
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume/--no-resume", help="Go on with the run that is in the folder.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print status and last epoch as JSON.")] = False,
) -> None:
    """Train with DP-SGD, watch membership and attribute inference, and write the model, a model card and a summary.

    \b
    Examples:
      betastar train -o runs/adult
      betastar train people.csv --label income --sensitive age --between 17:90 -o runs/people
      betastar train houses.csv --label price --label-range 0:2000000 --sensitive rooms -o runs/houses
      betastar train adult --seeds 5 --jobs 2 -o runs/five
      betastar train people.csv --label income --sensitive age --trials 20 --search lr=1e-4:1e-2log -o runs/best
      betastar train adult --sensitive sex --with relationship --target-attribute-beta .995 -o runs/protected
    """
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

    if seed is not None and seeds is not None:
        raise StudyError("--seed is one run, --seeds are several: choose one.")
    if trials is None and (search or trials_law != "fixed"):
        raise StudyError("--search and --trials-law go with --trials.")
    if trials is not None and seeds is not None:
        raise StudyError("--trials keeps the best of several runs, --seeds keeps all: choose one.")
    if target_beta is not None and scope == "batch":
        raise StudyError("--target-beta needs all records (--scope dataset): a batch proves nothing.")
    config = Config(
        study=study,
        target=label,
        task=task,
        label_range=_range("--label-range", label_range),
        sensitive=sensitive,
        values=tuple(value) if value else None,
        between=_range("--between", between),
        along=tuple(along or ()),
        drop=tuple(drop or ()),
        keep=tuple(keep or ()),
        person=person,
        max_records_per_person=max_records_per_person,
        public=public,
        epochs=epochs,
        batch_size=batch_size,
        noise_multiplier=noise_multiplier,
        max_grad_norm=max_grad_norm,
        sampling=sampling,
        times_per_epoch=times_per_epoch,
        max_batch_size=max_batch_size,
        learning_rate=learning_rate,
        hidden=tuple(hidden) if hidden else None,
        seed=seed,
        scope=scope or "batch",
        every=every,
        diameter=diameter,
        approximate=approximate,
        target_beta=target_beta,
        gap=gap,
        target_attribute_beta=target_attribute_beta,
        trials=trials,
        trials_law=trials_law,
        search=tuple(search or ()),
    )
    if trials is not None:
        with _backend(backend), one_run() as tell:
            search_best(config, output, resume, jobs, tell)
        folders = [output]
    elif seeds is None:
        with one_run() as tell:
            run(config, output, resume, tell)
        folders = [output]
    else:
        folders = seed_folders(output, range(seeds))
        with _backend(backend), several_runs(folders):
            train_seeds(config, output, range(seeds), jobs, resume)
    with printing.phase("drawing the figures of the summary, and writing the model card"):
        for folder in folders:
            summarise(folder)
            model_card.write(folder)
        told = [(folder, load(folder)) for folder in folders]
    if not json:
        show(*told[0]) if seeds is None else show_several(output, told)
        return
    answers = [
        {"folder": str(folder), **(one := RunFolder(folder)).status.to_json(), "proof": facts.proof, "last": one.epochs[-1]}
        for folder, facts in told
    ]
    print(json_format.dumps(answers[0] if seeds is None else {"runs": answers}))


def _range(name: str, text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        low, high = (float(part) for part in text.split(":"))
    except ValueError:
        raise ValueError(f"{name} must be two numbers as in 17:90, got {text!r}.") from None
    return low, high


def _backend(name: str | None) -> AbstractContextManager[object]:
    """A context with the joblib backend of this name, or with the one that joblib uses anyway."""
    import joblib

    if name is None:
        return nullcontext()
    if name == "dask":
        from distributed import Client

        Client()  # type: ignore[no-untyped-call] # joblib finds the newest one; the environment says which cluster it joins
    backend: AbstractContextManager[object] = joblib.parallel_config(backend=name)
    return backend


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
    with _bar(lambda: [Text(line, style="dim", overflow="ellipsis", no_wrap=True) for line in lines]) as bar:
        task = bar.add_task("starting", total=None)

        def tell(news: Json) -> None:
            nonlocal quality
            if "told" in news:
                for line in news["told"]:
                    bar.console.print(Text(line))
            elif "phase" in news:
                bar.update(task, description=news["phase"], unit=None, refresh=True)  # before it starts
            elif news.get("finished"):
                figure = main_figure(news)
                quality = f", {figure.title} {figure.shown(news[figure.name])} after epoch {news['epoch']}"
                quality += f" ({figure.shown(news[figure.baseline])} without a model)"
            else:
                lines[:] = _lines(news, quality)
                bar.update(task, description="training", total=news["steps"], completed=news["step"], unit="steps")

        yield tell


def _lines(news: Json, quality: str) -> list[str]:
    """The figures of a step, in lines that fit a terminal of 80 columns."""
    lines = [f"epoch {news['epoch']} of {news['epochs']}, loss {news['loss']:.3f}{quality}"]
    if "attribute" in news:
        beta = f"β* so far ≈ {down(news['membership'], 3)} (membership), {down(news['attribute'], 3)} ({news['secret']})"
        lines.append(beta)
    return lines


@contextmanager
def several_runs(folders: Sequence[Path]) -> Iterator[None]:
    """A bar of the runs that are complete, while processes train them."""
    from betastar.runs.folder import RunFolder

    ended = threading.Event()

    with _bar(list) as bar:
        task = bar.add_task("training", total=len(folders), unit="runs")

        def look() -> None:
            while not ended.wait(LOOK):
                bar.update(task, completed=sum(RunFolder(folder).complete for folder in folders))

        looking = threading.Thread(target=look, daemon=True)
        looking.start()
        try:
            yield
        finally:
            ended.set()
            looking.join()


@contextmanager
def _bar(above: Callable[[], list[RenderableType]]) -> Iterator[Progress]:
    """A bar of what is done, on standard error, below lines of text. It disappears when the context ends."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
    from rich.text import Text

    class Done(ProgressColumn):
        """How much is done, and an estimate of the time left."""

        def render(self, task: Task) -> Text:
            unit = task.fields.get("unit")
            if task.total is None or unit is None:
                return Text(f"{task.elapsed or 0.0:.0f} s")
            return Text(f"{task.completed:,.0f} of {task.total:,.0f} {unit}, {_left(task.time_remaining)}")

    class Lines(Progress):
        def get_renderables(self) -> Iterable[RenderableType]:
            yield from super().get_renderables()
            yield from above()

    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(bar_width=20), Done())
    with Lines(*columns, console=console, transient=True, disable=not console.is_terminal, speed_estimate_period=60) as bar:
        yield bar


def _left(seconds: float | None) -> str:
    """An estimate of the time left, in words."""
    if seconds is None:
        return "time left unknown yet"
    if seconds < 90:
        return f"about {seconds:.0f} s left"
    minutes = round(seconds / 60)
    return f"about {minutes} min left" if minutes < 90 else f"about {minutes // 60} h {minutes % 60} min left"


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
        (f"report {shlex.quote(str(folder))}{again}", "for whoever decides"),
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
    _next((f"report {shlex.quote(str(runs[0][0]))}", "one of them, for whoever decides"))


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
