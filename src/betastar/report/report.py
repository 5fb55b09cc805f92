"""A report for people: one HTML file with everything in it, or Markdown with its figures beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from betastar import validation
from betastar.figures import plots
from betastar.files import check, write_all
from betastar.report import statement
from betastar.report.audits import HEADS
from betastar.report.errors import ReportError
from betastar.report.facts import Facts, load
from betastar.report.recomputed import SAME, contradiction
from betastar.rounding import nearest_percent, plain
from betastar.runs.folder import EPOCHS, STEPS
from betastar.vocabulary import BANDS, MEANING, METRICS

if TYPE_CHECKING:
    import jinja2
    from matplotlib.axes import Axes

TEMPLATES = Path(__file__).parent / "templates"
FORMATS = ("html", "md")
#: The number of most exposed records that are listed on request.
LISTED = 20
BETA = METRICS["bayes_security"]


@dataclass(frozen=True)
class Figure:
    """A picture with its words: `alt` says what is drawn, and `caption` says how to read it."""

    name: str
    alt: str
    caption: str
    ax: Axes


def write(
    source: str | Path, output: str | Path | None = None, kind: str | None = None, records: bool = False, force: bool = False
) -> tuple[Facts, list[Path]]:
    """Write the report on a run folder or a JSON file.

    Parameters
    ----------
    source : path
        The folder of a run, a JSON file of a setting, or "-" for standard input.
    output : path, optional
        A file or a folder; by default the run's folder, or the folder of the JSON file.
    kind : "html" or "md", optional
        The format; by default as the name of the output says, else html.
    records : bool
        Whether the most exposed records are listed.
    force : bool
        Whether existing files are overwritten.

    Returns
    -------
    facts : Facts
        What the report is about.
    files : list of Path
        What was written, the report first.

    Raises
    ------
    ReportError
        If the source cannot be reported on, or a file is there already.
    """
    missing = [name for name in ("matplotlib", "jinja2") if find_spec(name) is None]
    if missing:
        raise ReportError(f"a report needs {missing[0]}, which is not installed: pip install 'betastar[report]'.")
    ending = Path(output or "").suffix.lower().lstrip(".")
    kind = validation.choice("format", kind or (ending if ending in FORMATS else "html"), FORMATS)
    path = _place(source, output, kind)
    _keep([path], force)  # before the work
    facts = load(source)
    for one in facts.attributes:
        if one.known and one.known[0] > float(one.certified.bayes_security.upper) + SAME:
            said, most = f"that β* ({one.name}) is {one.known[0]:.6f}", f"{float(one.certified.bayes_security.upper):.6f}"
            raise contradiction(Path(source) / EPOCHS, said, f"the distances in {STEPS} give at most {most}")
    figures = list(draw(facts))
    files = [path] if kind == "html" else [path, *(path.with_name(f"{path.stem}-{figure.name}.png") for figure in figures)]
    _keep(files, force)
    contents: dict[Path, str | bytes] = {path: render(facts, figures, kind, records, prefix=f"{path.stem}-")}
    contents |= {file: plots.image(figure.ax) for figure, file in zip(figures, files[1:], strict=False)}
    write_all(contents, private=facts.is_run)
    return facts, files


def _keep(files: list[Path], force: bool) -> None:
    for file in files:
        check(file)
        if file.exists() and not force:
            raise ReportError(f"{file} is there already: choose another name with -o, or --force to overwrite it.")


def _place(source: str | Path, output: str | Path | None, kind: str) -> Path:
    """The path of the report."""
    given = Path(source)
    if output is None:
        if given.is_symlink():
            raise ReportError(f"{given} is a symbolic link: name what it points to, or another place for the report with -o.")
        if str(source) == "-":
            raise ReportError("--output is needed for a setting from standard input: -o report.html.")
        return given / f"report.{kind}" if given.is_dir() else given.with_suffix(f".{kind}")
    path = Path(output)
    path = path / f"report.{kind}" if path.is_dir() else path
    if not path.parent.is_dir():
        raise ReportError(f"there is no folder {path.parent} for {path.name}: make it first, or choose another with -o.")
    return path


def summarise(path: str | Path) -> Path:
    """Write summary.md, the short Markdown that `betastar train` leaves in its folder, over an earlier one."""
    facts, folder = load(path), Path(path)
    figures = list(draw(facts, brief=True))
    text = render(facts, figures, "md", brief=True)
    write_all({folder / "summary.md": text} | {folder / f"{one.name}.png": plots.image(one.ax) for one in figures})
    return folder / "summary.md"


def draw(facts: Facts, brief: bool = False) -> Iterator[Figure]:
    """The figures, in the order of the report."""
    if facts.entries:
        yield Figure(
            "epochs",
            "β* after each epoch",
            "Bayes security after each epoch: 1 is no leak at all, and each epoch costs a little. The band reaches from what an "
            "attack attains to what no gradients at these distances exceed.",
            plots.over_epochs(facts.entries),
        )
    else:
        ax = plots.over_steps(facts.run, facts.membership.threat)
        yield Figure(
            "steps",
            "β* against membership inference as training goes on",
            "Bayes security against membership inference after each step: 1 is no leak at all. Dashed, the paper's closed form.",
            ax,
        )
    if not brief:
        yield from _tradeoffs(facts)
    if facts.entries:
        yield Figure(
            "accuracy",
            "privacy against accuracy",
            "Each point is an epoch: it shows what the model has learned, and what that cost in privacy.",
            plots.accuracy(facts.entries),
        )
    if facts.exposures:
        yield Figure(
            "exposure",
            "exposure of records",
            f"How exposed single records are, of the {len(facts.exposures):,} that were measured. Those on the left are exposed "
            "more.",
            plots.exposure(list(facts.exposures.values())),
        )


def _tradeoffs(facts: Facts) -> Iterator[Figure]:
    colors = {"proved": plots.PROVED}
    for log in (False, True):
        ax = plots.tradeoff(facts.membership.certified, log=log, label="membership")
        for one in facts.attributes:
            label = plots.plain(f"{one.name}, {one.kind}" if one.kind == "proved" else one.name)
            plots.tradeoff(one.certified, ax, log, label, colors.get(one.kind, plots.ATTRIBUTE))
        if log:
            caption = "The same for rare false alarms: it shows which records an attacker can name who must hardly ever be wrong."
            yield Figure("tradeoff-log", "trade-off curve at low false-positive rates", caption, ax)
        else:
            caption = (
                "What the best attack can do. On the dotted line the attacker guesses; the farther above it, the more the model "
                "gives away."
            )
            yield Figure("tradeoff", "trade-off curve", caption, ax)


def render(facts: Facts, figures: list[Figure], kind: str, records: bool = False, brief: bool = False, prefix: str = "") -> str:
    """The report's text."""
    environment = _environment(kind)
    verdicts = statement.verdicts(facts)
    exposed = sorted(facts.exposures.items(), key=lambda item: (item[1], item[0]))
    return environment.get_template(f"report.{kind}.j2").render(
        facts=facts,
        verdict=verdicts[0],
        others=verdicts[1:],
        meaning=MEANING,
        bands=BANDS,
        notices=statement.notices(facts),
        figures={figure.name: figure for figure in figures},
        prefix=prefix,
        brief=brief,
        accuracy=nearest_percent(facts.entries[-1]["accuracy"]) if facts.entries else None,
        metrics=statement.metrics(facts, brief),
        statement=statement.statement(facts),
        claims=statement.claims(facts),
        protected=statement.PROTECTED if facts.attributes else (),
        exposed=[(record, BETA.rounded(beta)) for record, beta in exposed[:LISTED]] if records else [],
        worst=BETA.rounded(exposed[0][1]) if exposed else None,
        median=BETA.rounded(exposed[len(exposed) // 2][1]) if exposed else None,
        parameters={name: _shown(value) for name, value in facts.parameters.items()},
        versions=statement.versions(),
        repeat=statement.REPEAT.get(facts.seed),
        audit_heads=HEADS,
    )


def _shown(value: object) -> str:
    if isinstance(value, float):
        return plain(value)
    if isinstance(value, list | tuple):
        shown = ", ".join(_shown(one) for one in value[:20])
        return f"{shown}, …" if len(value) > 20 else shown
    return ", ".join(f"{key}: {_shown(one)}" for key, one in value.items()) if isinstance(value, dict) else str(value)


def _environment(kind: str) -> jinja2.Environment:
    """Names of studies, columns and secrets are other people's words: every value is escaped, unless it is marked as markup."""
    import jinja2
    from markupsafe import Markup

    def markdown(value: object) -> str:
        return value if isinstance(value, Markup) else _escaped(str(value))

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=kind == "html",
        finalize=markdown if kind == "md" else None,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["verbatim"] = Markup
    environment.filters["link"] = lambda name: Markup(quote(name))
    environment.filters["svg"] = lambda figure: Markup(plots.inline(figure.ax, figure.name))
    return environment


def _escaped(text: str) -> str:
    """Text that Markdown shows as it is."""
    text = "".join(one if one.isprintable() or one.isspace() else "\ufffd" for one in text)  # no control characters
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*\[\]|~$]|(?<!\w)_|_(?!\w)|^#)", r"\\\1", text)
