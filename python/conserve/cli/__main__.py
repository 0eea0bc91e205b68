"""`python -m conserve.cli`: the command `conserve`."""

import sys

from conserve.cli import main

if __name__ == "__main__":
    sys.exit(main())
