"""The wall clock of a process that imports this, as sitecustomize for one, jumps by twenty years, twice a second."""

import time

JUMP_SECONDS = 3.15e8


def jumping(real=time.time):
    return real() + (1 if int(2 * time.monotonic()) % 2 else -1) * JUMP_SECONDS


time.time = jumping
