"""`python -m mxfp8fa` is the command `mxfp8fa`."""

import sys

from mxfp8fa.cli import main

if __name__ == "__main__":
    sys.exit(main())
