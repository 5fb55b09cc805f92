"""`python -m studies.gap_clipping`."""

from studies.command import main
from studies.gap_clipping.page import write
from studies.gap_clipping.study import run

if __name__ == "__main__":
    main(
        "gap_clipping",
        "Study what gap clipping costs: accuracy against proved attribute privacy, with figures.",
        run,
        write,
        seeds=5,
        quick="take minutes instead of an hour: one seed, few epochs",
    )
