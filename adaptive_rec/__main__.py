"""``python -m adaptive_rec``: the command line."""

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]  # the working directory, whose files would be taken for the modules that are imported from here on

from adaptive_rec.cli import main

if __name__ == "__main__":
    sys.exit(main())
