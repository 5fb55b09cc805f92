"""`python -m studies.paper`: the paper's figures, table and numbers, and what betastar computes."""

from studies import command
from studies.paper.reproduce import SCRIPTS, reproduce

if __name__ == "__main__":
    options = command.parser(
        "paper",
        "Make the paper's figures, table and numbers, and compare them with what betastar computes. Trainings are kept and used "
        "again.",
        "take minutes instead of an hour: one seed, few epochs",
    )
    options.add_argument("what", nargs="*", default=["all"], help=f"what is made: all, {', '.join(SCRIPTS)} (default: all)")
    options.add_argument("--redraw", action="store_true", help="only draw the figures anew, from what was measured in the folder")
    options.add_argument("--jobs", type=int, default=2, help="number of seeds that are trained at a time (default: 2)")
    given = options.parse_args()
    with command.ended("paper"):
        page = reproduce(given.what, given.output, given.quick, given.jobs, lambda name: command.tell(f"{name} …"), given.redraw)
        print((page.with_suffix(".json") if given.json else page).read_text())
