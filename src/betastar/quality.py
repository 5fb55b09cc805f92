"""How good a model is: the figures, by the names that they have in JSON, and the sentence that tells them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from betastar.rounding import nearest_amount, nearest_percent


@dataclass(frozen=True)
class QualityFigure:
    """A figure of how good a model is on some records. `name` is its JSON key.

    baseline: the figure that needs no model, and baseline_title how it is reached.
    share: whether it is a share of the records; otherwise it is a number, with this number of digits.
    """

    name: str
    title: str
    help: str
    share: bool = False
    baseline: str = ""
    baseline_title: str = ""
    digits: int = 4

    def shown(self, value: float) -> str:
        """The number for people. It was measured and has no safe side."""
        return nearest_percent(value) if self.share else nearest_amount(value, self.digits)


#: Figures of classes, then those of a label that is a number (regression).
QUALITY: dict[str, QualityFigure] = {
    one.name: one
    for one in (
        QualityFigure(
            "accuracy",
            "accuracy",
            "The share of records about which the model is right.",
            share=True,
            baseline="baseline",
            baseline_title="always the most frequent label",
        ),
        QualityFigure("baseline", "baseline", "The accuracy of always guessing the most frequent label.", share=True),
        QualityFigure("auc", "AUC", "The area under the ROC curve; 0.5 is guessing.", digits=3),
        QualityFigure(
            "rmse",
            "RMSE",
            "The root of the mean squared error, in the units of the label.",
            baseline="baseline_rmse",
            baseline_title="always the mean label",
        ),
        QualityFigure("mae", "MAE", "The mean absolute error, in the units of the label.", baseline="baseline_mae"),
        QualityFigure("r2", "R²", "The share of the label's variance that the predictions explain; 1 is always right.", digits=3),
        QualityFigure("baseline_rmse", "RMSE of the mean", "The RMSE of always predicting the mean label."),
        QualityFigure("baseline_mae", "MAE of the mean", "The MAE of always predicting the mean label."),
    )
}


def main_figure(figures: Mapping[str, object]) -> QualityFigure:
    """The figure that says most of these: the accuracy, or the RMSE if the label is a number."""
    return QUALITY["rmse" if "rmse" in figures else "accuracy"]


def quality_sentence(figures: Mapping[str, float], records: str) -> str:
    """Tell how good a model is on some records, without the full stop: "the test records".

    Parameters
    ----------
    figures : mapping of str to float
        The figures by their names. What is missing is not told.
    records : str
        Which records they are.
    """
    shown = {name: figure.shown(figures[name]) for name, figure in QUALITY.items() if name in figures}
    if main_figure(figures).share:
        text = f"The model is right for {shown['accuracy']} of {records}"
        if "baseline" in shown:
            text += f"; always guessing the most frequent label is right for {shown['baseline']}"
        return text + (f". Its area under the ROC curve (AUC) is {shown['auc']}, where 0.5 is guessing" if "auc" in shown else "")
    model, idle = (
        " and ".join(f"{shown[name]} ({QUALITY[name.removeprefix('baseline_')].title})" for name in names if name in shown)
        for names in (("rmse", "mae"), ("baseline_rmse", "baseline_mae"))
    )
    text = f"Predictions for {records} are off by {model}" + (f"; always predicting the mean, by {idle}" if idle else "")
    return text + (f". R² is {shown['r2']}, where 0 is as good as the mean and 1 is always right" if "r2" in shown else "")
