"""Names of the arrays of a checkpoint's shards: numbers of rows, and their values or where they are on a disk."""

ROW, WEIGHT, OPTIMIZER_STATE, ADDRESS = "row", "weight", "optimizer_state", "address"
