"""Where cold rows are: in host memory, in a log on a disk, or in both."""
