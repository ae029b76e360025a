#!/usr/bin/env bash
# TorchRec 1.8.0: the FP8 codec of its communication cuts every number at 0.9375.
#
# Guess before the run: vectors sent with CommType.FP8 lose digits (a float of 8 bits has 3 of them, so some 6 per cent) over
# the range of such a type, up to 240 or 448. Seen: on the way forward 1.0, 1.5, 3 and 100 all arrive as 0.9375, their negatives
# as -0.9375. Numbers below are within those digits. The FP16 codec says in its name that it clamps, and does so at 65,504.
# What it means: a pooled vector is a sum of rows and soon longer than 1; such a number is cut without a word, not rounded.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/pip" install --quiet --no-deps torchrec==1.8.0 fbgemm-gpu-cpu==1.8.0 torchmetrics==1.9.0 tensordict==0.15.3 \
  pyre-extensions==0.0.32 iopath==0.1.10 pyvers==0.2.3 typing-inspect==0.9.0 mypy-extensions==1.2.0 cloudpickle==3.1.3 \
  orjson==3.13.0 lightning-utilities==0.15.3 portalocker==4.4.2 tqdm==4.70.1 importlib-metadata==10.2.0 zipp==4.1.2 \
  pyyaml==6.0.4 packaging==26.4
"$folder/venv/bin/python" -W ignore - <<'PYTHON' 2>/dev/null
import torch
from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig, get_qcomm_codecs


def send(kind, numbers):
    codec = get_qcomm_codecs(QCommsConfig(forward_precision=kind, backward_precision=kind)).forward
    context = codec.create_context()
    return codec.decode(codec.encode(numbers.clone().view(1, -1), context), context).flatten()


small = torch.tensor([0.011, 0.1, -0.25, 0.5, -0.7, 0.8, 0.9, 0.93])
large = torch.tensor([1.0, 1.5, -2.0, 3.0, 10.0, -30.0, 100.0, 200.0])
for numbers in (small, large):
    print("sent", numbers.tolist())
    print(" FP8", send(CommType.FP8, numbers).tolist())
    print("BF16", send(CommType.BF16, numbers).tolist())
assert ((send(CommType.FP8, small) - small).abs() <= small.abs() / 16).all()
assert send(CommType.FP8, large).tolist() == [0.9375 if number > 0 else -0.9375 for number in large.tolist()]
assert torch.equal(send(CommType.BF16, large), large)
PYTHON
