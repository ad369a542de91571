"""Rehearses one rank of the sharded setups that were measured on a card, and prints the errors.

    python3 bench/rehearse/ranks.py --memroom bin/memroom --python PYTHON [NAME...]

PYTHON is the test environment's (testenv/ensure); the truth is bench/gpu/recipes-h200.jsonl,
where one process on the card was rank 0 of each world. Setups that need
peft or DeepSpeed are left out.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
GPU = os.path.join(HERE, "..", "gpu")
KINDS = ("fsdp1", "fsdp2", "ddp")


def rows():
    with open(os.path.join(GPU, "recipes-h200.jsonl")) as file:
        for row in map(json.loads, file):
            if row.get("kind") in KINDS and "error" not in row and "r" not in row:
                yield row


def train(name):
    """What the measuring program does for one case, as a script that torchrun would start."""
    sys.path.insert(0, GPU)
    import recipes
    import torch
    import torch.distributed as dist

    case = next(c for c in recipes.CASES if c["name"] == name)
    if case["kind"] == "ddp":
        dist.init_process_group("nccl")
    model, half = recipes.build(case, torch)
    trained = [p for p in model.parameters() if p.requires_grad]
    opt = recipes.optimizer(case.get("opt", "adamw"), trained, torch, name.startswith("2-"))
    model.train()
    for _ in range(4):
        for _ in range(case.get("accumulate", 1)):
            given = recipes.batch(case, torch)
            with torch.autocast("cuda", half, enabled=half is not None):
                loss = model(**given).loss
            loss.backward()
        opt.step()
        opt.zero_grad()


def rehearse(args, row):
    """The answer for rank 0 of a row, or None."""
    done = subprocess.run(
        [args.memroom, "plan", "--rehearse", "--json", "--ranks", str(row["world"]), "--gpu"]
        + ["H200", "--", args.python, __file__, "--one", row["name"]],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )
    answer = json.loads(done.stdout or "{}")
    if "ranks" not in answer:
        print(f"{row['name']:28} {done.stderr.strip().splitlines()[-1][-140:]}", flush=True)
        return None
    return answer


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--memroom")
    parser.add_argument("--python")
    parser.add_argument("--one")
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    if args.one:
        return train(args.one)
    errors: dict = {}
    print(f"{'setup':28} {'allocated':>10} {'reserved':>10}  inside the interval")
    for row in rows():
        if args.names and row["name"] not in args.names:
            continue
        answer = rehearse(args, row)
        if answer is None:
            continue
        first = answer["ranks"][0]
        allocated, reserved = (first[k + "_peak"] / row[k] - 1 for k in ("allocated", "reserved"))
        outside = first["device_peak"] - first["reserved_peak"]  # the context, and NCCL's share
        errors.setdefault(row["kind"], []).append(abs(reserved))
        inside = "yes" if answer["low"] <= row["reserved"] + outside <= answer["high"] else "no"
        print(f"{row['name']:28} {allocated:+10.2%} {reserved:+10.2%}  {inside}", flush=True)
    for kind, found in errors.items():
        print(
            f"{kind}: {len(found)} setups, reserved off by {statistics.median(found):.2%} at the "
            f"median, {max(found):.2%} at worst"
        )


if __name__ == "__main__":
    main()
