"""`python -m studies.voters`."""

from studies.command import main
from studies.voters.page import write
from studies.voters.study import study

if __name__ == "__main__":
    main(
        "voters",
        "Study what a model of voters tells about vote, religion, race and ideology, with figures.",
        study,
        write,
        seeds=5,
        quick="take a minute instead of half an hour: one seed and secret, fewer respondents, gaps and games",
    )
