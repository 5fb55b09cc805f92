"""`python -m studies.tweets`."""

from studies.command import main
from studies.tweets.page import write
from studies.tweets.study import study

if __name__ == "__main__":
    main(
        "tweets",
        "Study a transformer that is fine-tuned on tweets with LoRA: accuracy, membership and attribute risk, with figures.",
        study,
        write,
        seeds=3,
        quick="take two minutes instead of half an hour: one seed, fewer tweets and epochs",
        jobs=False,
    )
