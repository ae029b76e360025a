"""Pages in one file that tell of a run, or of a data set: nothing is loaded from elsewhere, they open from a disk."""
