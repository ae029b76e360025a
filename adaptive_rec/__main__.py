"""``python -m adaptive_rec``: the command line."""

import sys

from adaptive_rec.cli import main

if __name__ == "__main__":
    sys.exit(main())
