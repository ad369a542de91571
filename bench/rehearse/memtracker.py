"""The peer of a rehearsal: PyTorch's MemTracker under FakeTensorMode over the same training. Prints
the peak in bytes.

    python memtracker.py CASE.json

It needs no card when the tensors are the CPU's; half-precision autocast is the CPU's too. It knows
neither segments nor context.
"""

import contextlib
import json
import sys

import torch
import train_case
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker


def main():
    case = json.load(open(sys.argv[1]))
    device = torch.device("cpu")
    if case.get("precision") == "bf16":
        torch.set_default_dtype(torch.bfloat16)  # fake parameters cannot be converted
    with FakeTensorMode(allow_non_fake_inputs=True):
        model, head = train_case.build(case)
        train_case.configure(case, model)
        optimizer = train_case.optimizer(
            case.get("optim", "adamw"), [p for p in model.parameters() if p.requires_grad]
        )
        data = train_case.Data(case, model, head, device)
        half = {"amp_bf16": torch.bfloat16, "amp_fp16": torch.float16}.get(case.get("precision"))
        tracker = MemTracker()
        tracker.track_external(model, optimizer)
        with tracker:
            for step in range(2):
                with torch.autocast("cpu", dtype=half) if half else contextlib.nullcontext():
                    loss = data.loss(data.batch())
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                if step == 0:
                    tracker.reset_mod_stats()
    peak = tracker.get_tracker_snapshot("peak")
    print(sum(row["Total"] for row in peak.values()))


if __name__ == "__main__":
    main()
