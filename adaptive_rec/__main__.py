"""``python -m adaptive_rec``: the command line."""

from adaptive_rec.cli import main

if __name__ == "__main__":
    main()
