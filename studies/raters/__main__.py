"""`python -m studies.raters`."""

from studies.command import main
from studies.raters.page import write
from studies.raters.study import study

if __name__ == "__main__":
    main(
        "raters",
        "Study what a recommender tells about persons with many ratings, and what protecting them costs, with figures.",
        study,
        write,
        seeds=5,
        quick="take a minute instead of a quarter of an hour: one seed and cap, fewer games",
    )
