"""The command `betastar`, before its modules are loaded, which takes a second: Ctrl-C ends it without a traceback."""

import sys


def main() -> None:
    try:
        from betastar.cli.main import main as run
    except KeyboardInterrupt:
        print("\nbetastar: interrupted.", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
