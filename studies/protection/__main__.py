"""`python -m studies.protection`."""

from studies.command import main
from studies.protection.page import write
from studies.protection.study import run

if __name__ == "__main__":
    main(
        "protection",
        "Study what it costs to protect some people more, and what is gained if records sit out, with a figure.",
        run,
        write,
        seeds=5,
        quick="take half a minute instead of ten minutes of one core: one seed, two epochs",
    )
