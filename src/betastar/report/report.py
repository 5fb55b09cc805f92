"""A report for people: one HTML file with everything in it, or Markdown with its figures beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from betastar import plots, validation
from betastar.calibrate import Target
from betastar.files import check, write_all
from betastar.quality import main_figure
from betastar.report import statement
from betastar.report.facts import Facts, load
from betastar.report.facts import public as without_data
from betastar.report.recomputed import SAME, ReportError, contradiction
from betastar.risk import BANDS, METRICS
from betastar.rounding import plain
from betastar.runs.folder import EPOCHS, STEPS

if TYPE_CHECKING:
    import jinja2
    from matplotlib.axes import Axes

TEMPLATES = Path(__file__).parent / "templates"
FORMATS = ("html", "md")
#: The number of most exposed records that are listed on request.
LISTED = 20
BETA = METRICS["bayes_security"]
#: What the curve of an attribute is, by the kind of its figure.
CURVES = {"proved": "proved", "assumed": "for the distance given", "dataset": "as measured", "batch": "as measured"}
#: The heading of each figure of the appendix.
HEADINGS = {
    "epochs": "As training goes on",
    "steps": "As training goes on",
    "tradeoff": "What an attack can do",
    "tradeoff-log": "What an attack can do with few false alarms",
    "accuracy": "Privacy against accuracy",
    "error": "Privacy against error",
}


@dataclass(frozen=True)
class Figure:
    """A picture with its words: `alt` says what is drawn, and `caption` says how to read it."""

    name: str
    alt: str
    caption: str
    ax: Axes


def write(
    source: str | Path,
    output: str | Path | None = None,
    kind: str | None = None,
    records: bool = False,
    force: bool = False,
    public: bool = False,
    author: str = "",
    purpose: str = "",
    target: Target | None = None,
    prior: float | None = None,
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
    public : bool
        Whether everything that depends on the training records is left out.
    author, purpose : str
        Who makes the report, and what for.
    target : Target, optional
        The reader's threshold, by which each threat is judged and which the advice is to reach; the bands by default.
    prior : float, optional
        The probability of one of two values of the attribute before the attack, for what an attacker reaches with real odds; by
        default the share in the training records, if the run knows it and the report may say it.

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
        raise ReportError(f"a report needs {missing[0]}, which is not installed: pip install {missing[0]}.")
    ending = Path(output or "").suffix.lower().lstrip(".")
    kind = validation.choice("format", kind or (ending if ending in FORMATS else "html"), FORMATS)
    if public and records:
        raise ReportError("--public leaves out single records: choose between it and --list-records.")
    path = _place(source, output, kind, "report-public" if public else "report")
    _keep([path], force)  # before the work
    facts = load(source)
    for one in facts.attributes:
        if one.known and one.known[0] > float(one.certified.bayes_security.upper) + SAME:
            said, most = f"that β* ({one.name}) is {one.known[0]:.6f}", f"{float(one.certified.bayes_security.upper):.6f}"
            raise contradiction(Path(source) / EPOCHS, said, f"the distances in {STEPS} give at most {most}")
    facts = without_data(facts) if public else facts
    facts = facts if prior is None else facts.with_prior(prior)
    figures = list(draw(facts))
    files = [path] if kind == "html" else [path, *(path.with_name(f"{path.stem}-{figure.name}.png") for figure in figures)]
    _keep(files, force)
    text = render(facts, figures, kind, f"{path.stem}-", records=records, author=author, purpose=purpose, target=target)
    contents: dict[Path, str | bytes] = {path: text}
    contents |= {file: plots.image(figure.ax) for figure, file in zip(figures, files[1:], strict=False)}
    write_all(contents, private=facts.is_run and not public)
    return facts, files


def _keep(files: list[Path], force: bool) -> None:
    for file in files:
        check(file)
        if file.exists() and not force:
            raise ReportError(f"{file} is there already: choose another name with -o, or --force to overwrite it.")


def _place(source: str | Path, output: str | Path | None, kind: str, name: str) -> Path:
    """The path of the report."""
    given = Path(source)
    if output is None:
        if given.is_symlink():
            raise ReportError(f"{given} is a symbolic link: name what it points to, or another place for the report with -o.")
        if str(source) == "-":
            raise ReportError("--output is needed for a setting from standard input: -o report.html.")
        return given / f"{name}.{kind}" if given.is_dir() else given.with_suffix(f".{kind}")
    path = Path(output)
    path = path / f"{name}.{kind}" if path.is_dir() else path
    if not path.parent.is_dir():
        raise ReportError(f"there is no folder {path.parent} for {path.name}: make it first, or choose another with -o.")
    return path


def summarise(path: str | Path, facts: Facts | None = None) -> Path:
    """Write summary.md, the short Markdown that `betastar train` leaves in its folder, over an earlier one."""
    facts, folder = load(path) if facts is None else facts, Path(path)
    figures = list(draw(facts, brief=True))
    text = render(facts, figures, "md", brief=True)
    write_all({folder / "summary.md": text} | {folder / f"{one.name}.png": plots.image(one.ax) for one in figures})
    return folder / "summary.md"


def draw(facts: Facts, brief: bool = False) -> Iterator[Figure]:
    """The figures, in the order of the report."""
    if not brief:
        yield _guesses(facts)
    if facts.entries and facts.trials is None:  # figures of epochs and steps are about one run
        yield Figure(
            "epochs",
            "β* after each epoch",
            "Bayes security after each epoch, by the method exact: 1 is no leak at all, and each epoch costs a little. A band "
            "reaches up to what an attack attains.",
            plots.over_epochs(facts.entries, secret=_secret(facts)),
        )
    elif facts.trials is None:
        ax = plots.over_steps(facts.run, facts.membership.threat)
        yield Figure(
            "steps",
            "β* against membership inference as training goes on",
            "Bayes security against membership inference after each step: 1 is no leak at all. Dashed, the paper's closed form.",
            ax,
        )
    if not brief:
        yield from _tradeoffs(facts)
    if facts.entries and facts.trials is None:
        what = "accuracy" if main_figure(facts.entries[-1]).share else "error"
        yield Figure(
            what,
            f"privacy against {what}",
            "Each point is an epoch: it shows what the model has learned, and what that cost in privacy.",
            plots.accuracy(facts.entries, secret=_secret(facts)),
        )
    for one in _exposed(facts):
        yield Figure(
            one.name,
            one.title[0].lower() + one.title[1:],
            f"How exposed single records are, of the {len(one.betas):,} that were measured. Those on the left are exposed more; "
            "none is exposed more than the figure for any record says.",
            plots.exposure(list(one.betas.values()), any_record=one.any_record, threat=one.threat),
        )


class Exposed(NamedTuple):
    """β* of single records, by their index: estimates against one threat, and the β* that holds for any record."""

    name: str
    threat: str
    title: str
    betas: dict[int, float]
    any_record: float | None

    @property
    def sentence(self) -> str:
        """How records differ."""
        every = sorted(self.betas.values())
        small = " A record whose gradients are small leaks less." if self.threat == "membership" else ""
        worst, median = BETA.rounded(every[0]), BETA.rounded(every[len(every) // 2])
        return (
            f"Records differ: of the {len(every):,} that were measured, the most exposed one has β* ≈ {worst}, the median "
            f"{median}.{small} These are estimates about single people, and showing them leaks."
        )

    @property
    def most(self) -> list[tuple[int, str]]:
        """The most exposed records."""
        worst = sorted(self.betas.items(), key=lambda item: (item[1], item[0]))[:LISTED]
        return [(record, BETA.rounded(beta)) for record, beta in worst]


def _exposed(facts: Facts) -> list[Exposed]:
    """What was measured of single records, against attribute inference and membership inference."""
    found = []
    if facts.exposures:
        lower = facts.measured.lower if facts.measured else None
        found.append(Exposed("exposure", "attribute", "Exposure of records", facts.exposures, lower))
    if facts.members:
        # Replaced by another record, or, if nothing is known of that, removed.
        betas = {record: gone if isnan(other) else other for record, (other, gone) in facts.members.items()}
        removed = any(isnan(other) for other, _ in facts.members.values())
        title = "Exposure of records to membership inference"
        found.append(Exposed("members", "membership", title, betas, None if removed else facts.membership.lower))
    return found


def _guesses(facts: Facts) -> Figure:
    """A hundred guesses of each attacker, at even odds."""
    shares = {one.name: 1.0 - one.lower / 2.0 for one in statement.verdicts(facts)}
    said = "; ".join(f"{name}: {statement.right(2.0 * (1.0 - share)).removesuffix(' %')} right" for name, share in shares.items())
    return Figure(
        "guesses",
        f"Of 100 guesses at even odds, 50 are right without the model. With it, at most: {said}",
        "A hundred guesses of an attacker at even odds: right without the model, right because of the model, and wrong.",
        plots.guesses(shares),
    )


def _secret(facts: Facts) -> str:
    """The name of the attribute that was measured."""
    return facts.measured.name if facts.measured else "attribute"


def _tradeoffs(facts: Facts) -> Iterator[Figure]:
    for log in (False, True):
        ax = plots.tradeoff(facts.membership.certified, log=log, label="membership")
        for one in facts.attributes:
            color = plots.PROVED if one.kind == "proved" else plots.ATTRIBUTE
            label = f"{plots.plain(one.name)}, {CURVES[one.kind]}"
            plots.tradeoff(one.certified, ax, log, label, color, plots.DASHES[color])
        if log:
            caption = "The same for rare false alarms: it shows which records an attacker can name who must hardly ever be wrong."
            yield Figure("tradeoff-log", "trade-off curve at low false-positive rates", caption, ax)
        else:
            caption = (
                "What the best attack can do. On the dotted line the attacker guesses; the farther above it, the more the model "
                "gives away."
            )
            yield Figure("tradeoff", "trade-off curve", caption, ax)


def render(
    facts: Facts,
    figures: list[Figure],
    kind: str,
    prefix: str = "",
    brief: bool = False,
    records: bool = False,
    author: str = "",
    purpose: str = "",
    target: Target | None = None,
) -> str:
    """The report's text; options as for `write`. Names of figures beside it begin with the prefix."""
    environment = _environment(kind)
    return environment.get_template(f"report.{kind}.j2").render(
        facts=facts,
        verdicts=statement.verdicts(facts, target),
        headings=HEADINGS,
        bands=BANDS,
        target=target,
        notices=[one.text for one in statement.notices(facts)],
        audits=statement.played(facts),
        figures={figure.name: figure for figure in figures},
        prefix=prefix,
        brief=brief,
        about=[] if brief else statement.about(facts, author, purpose),
        origin=[] if brief else statement.origin(facts),
        quality=statement.quality(facts),
        weaker=None if brief else statement.weaker(facts),
        next_steps=[] if brief else statement.next_steps(facts, target),
        metrics=statement.metrics(facts, brief),
        words=statement.WORDS,
        statement=statement.statement(facts),
        claims=statement.claims(facts),
        protected=statement.PROTECTED if facts.attributes else (),
        exposed=_exposed(facts),
        listed=records,
        parameters={name: _shown(value) for name, value in facts.parameters.items()},
        versions=statement.versions(),
        repeat=statement.REPEAT.get(facts.seed),
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
