"""What memroom costs a training on a GPU, and that it changes nothing: GPT-2 small in bf16 (8 x
512) and ResNet-50.

python bench/overhead/gpu.py --memroom bin/memroom [--seconds 60] [--processes 3] [--only
gpt2|resnet50|resnet50-256]

Two comparisons, both interleaved in one run: - several processes with memroom around them and as
many without take turns of ten steps in random order. Processes that run the very same thing differ
among themselves, so the spread of the bare ones is printed: a ratio inside it says nothing; - one
process under `memroom run` makes steps in pairs, one with its hooks in place and one with them
taken out, in the order the dice give. Nothing else differs, and what changes slowly, such as a
processor's clock, is the same for both of a pair. The 95 % interval comes from drawing the pairs
again. Others on the machine only ever add time, so the fastest tenths of the steps are compared
too. ResNet-50 comes twice: with 64 images the card waits for Python, with 256 Python waits for the
card. Printed too: the time inside hooks by their own counters, our processes' memory and processor
time, and whether the losses are bit-identical. Without --memroom a small monitor of this script's
own reads the probe's socket.
"""

import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
PROBE = os.path.join(HERE, os.pardir, os.pardir, "probe", "py")


def train(name):
    """The child: for each number on stdin, runs as many steps and prints a JSON object with their
    times and losses.
    """
    import torch

    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    torch.backends.cuda.enable_cudnn_sdp(False)  # its backward pass is not deterministic
    if name == "gpt2":
        from transformers import GPT2Config, GPT2LMHeadModel

        model = GPT2LMHeadModel(GPT2Config(attn_pdrop=0.0)).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

        def loss_of():
            ids = torch.randint(0, 50257, (8, 512), device="cuda")
            with torch.autocast("cuda", torch.bfloat16):
                return model(input_ids=ids, labels=ids).loss
    else:
        import torchvision

        images = int((name.split("-") + ["64"])[1])
        model = torchvision.models.resnet50().cuda().to(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

        def loss_of():
            x = torch.randn(images, 3, 224, 224, device="cuda").to(
                memory_format=torch.channels_last
            )
            y = torch.randint(0, 1000, (images,), device="cuda")
            with torch.autocast("cuda", torch.bfloat16):
                return torch.nn.functional.cross_entropy(model(x), y)

    dice = random.Random(1)
    for line in sys.stdin:
        count, _, mixed = line.strip().partition(" ")
        times, losses, hooked = [], [], []
        for _ in range(int(count)):
            hooked.append(
                not mixed or (dice.random() < 0.5 if len(hooked) % 2 == 0 else not hooked[-1])
            )
            if mixed:
                hooks_in_place(torch, hooked[-1])
            torch.cuda.synchronize()
            start = time.perf_counter()
            loss = loss_of()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(loss.item())  # waits for the GPU: the time is the step's own
            torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
        print(
            json.dumps({"times": times, "losses": [x.hex() for x in losses], "hooked": hooked}),
            flush=True,
        )


kept_aside = []  # what hooks_in_place took out


def hooks_in_place(torch, wanted):
    """Takes the probe's per-step hooks out of torch, or puts them back. Hooks that rest are out of
    the way already, but for one that counts.
    """
    module = sys.modules["torch.optim.optimizer"]
    tables = module._global_optimizer_pre_hooks, module._global_optimizer_post_hooks
    if wanted and kept_aside:
        backward, *kept = kept_aside.pop()
        torch.autograd.backward = backward
        for table, hooks in zip(tables, kept):
            table.update(hooks)
    elif not wanted and not kept_aside:
        kept_aside.append((torch.autograd.backward,) + tuple(dict(table) for table in tables))
        backward = torch.autograd.backward
        torch.autograd.backward = getattr(backward, "__wrapped__", backward)
        for table in tables:
            table.clear()


class Monitor:
    """Reads what probes say."""

    def __init__(self):
        self.path = os.path.join(tempfile.mkdtemp(), "s")
        self.heard = []
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(self.path)
        self.server.listen(16)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            connection, _ = self.server.accept()
            threading.Thread(target=self._read, args=(connection,), daemon=True).start()

    def _read(self, connection):
        for line in connection.makefile("rb"):
            self.heard.append(dict(json.loads(line), probe=id(connection)))


class Trainer:
    """A training process that runs steps when told to."""

    def __init__(self, name, monitor=None, memroom=None):
        env = dict(os.environ, CUBLAS_WORKSPACE_CONFIG=":4096:8")
        if monitor is not None:
            env.update(PYTHONPATH=PROBE, MEMROOM_PROBE=monitor.path)
        command = [sys.executable, os.path.abspath(__file__), "--child", name]
        if memroom:
            env["MEMROOM_HOME"] = tempfile.mkdtemp()
            command = [memroom, "run", "--quiet", "--"] + command
        self.process = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, universal_newlines=True
        )
        self.times, self.losses = [], []

    def steps(self, count, keep=True, how=""):
        """Runs steps; the times of those to keep are gathered. Returns what the child says of
        them.
        """
        self.process.stdin.write(("%d %s" % (count, how)).strip() + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        self.losses += answer["losses"]
        if keep:
            self.times += answer["times"]
        return answer

    def end(self):
        self.process.stdin.close()
        self.process.wait()
        time.sleep(0.2)


def milliseconds(trainers):
    return 1e3 * statistics.median(t for trainer in trainers for t in trainer.times)


def beside(name, seconds, processes, memroom):
    """Processes with memroom and processes without, in turns."""
    monitor = None if memroom else Monitor()
    bare = [Trainer(name) for _ in range(processes)]
    watched = [Trainer(name, monitor, memroom) for _ in range(processes)]
    for trainer in bare + watched:
        trainer.steps(15, keep=False)
    before, began = processor_seconds(memroom), time.time()
    order, chance = bare + watched, random.Random(1)
    while time.time() < began + seconds:
        chance.shuffle(order)
        for trainer in order:
            trainer.steps(
                2, keep=False
            )  # the first steps after a change of process find cold caches
            trainer.steps(10)
    resident, running = resident_bytes(memroom)
    share = (processor_seconds(memroom) - before) / (time.time() - began)
    for trainer in order:
        trainer.end()
    alone = [milliseconds([trainer]) for trainer in bare]
    print(
        (
            "%s, %d processes a side: without %.3f ms, with %.3f ms, ratio %.4f (bar 1.005); "
            "the bare ones among themselves: %.3f to %.3f ms; losses bit-identical: %s"
        )
        % (
            name,
            processes,
            milliseconds(bare),
            milliseconds(watched),
            milliseconds(watched) / milliseconds(bare),
            min(alone),
            max(alone),
            all(trainer.losses == bare[0].losses for trainer in order),
        ),
        flush=True,
    )
    if memroom:
        print(
            (
                "%s: our %d processes for each run: %.1f MiB resident (bar 40), %.2f %% of a "
                "core (bar 1)"
            )
            % (name, running // processes, resident / 2**20 / processes, 100 * share / processes),
            flush=True,
        )
    else:
        print(
            "%s: inside hooks %.4f %% of step time (bar 0.5 %%); faults %s"
            % ((name,) + inside_hooks(monitor.heard)),
            flush=True,
        )


def inside_hooks(heard):
    """(per cent of the step time, faults told) by the hooks' own counters."""
    spent = busy = 0
    for probe in {m["probe"] for m in heard}:
        told = [m for m in heard if m["t"] == "steps" and m["probe"] == probe]
        rows = [row for m in told for row in m["rows"]]
        if rows:
            usual = statistics.median(row[3] for row in rows)
            busy += sum(
                row[3] for row in rows if row[3] < 10 * usual
            )  # the rest is waiting for its turn
            spent += told[-1]["spent_us"] - told[0]["spent_us"]
    return 100.0 * spent / busy, [m for m in heard if m["t"] == "fault"]


def in_and_out(name, seconds, memroom):
    """One process, each step with or without its hooks."""
    trainer = Trainer(name, None if memroom else Monitor(), memroom)
    trainer.steps(15, keep=False)
    pairs, end = (
        [],
        time.time() + seconds,
    )  # (with hooks, without) of two steps that followed each other
    while time.time() < end:
        answer = trainer.steps(20, how="mixed")
        times, hooked = answer["times"], answer["hooked"]
        pairs += [
            (times[i], times[i + 1]) if hooked[i] else (times[i + 1], times[i])
            for i in range(0, len(times), 2)
        ]
    trainer.end()
    chance = random.Random(1)
    said = []
    for what, ratio in (("median of pairs", pairwise), ("fastest tenths", fastest)):
        again = sorted(ratio(chance.choices(pairs, k=len(pairs))) for _ in range(400))
        said.append(
            "%s %.4f (95 %% interval %.4f to %.4f)" % (what, ratio(pairs), again[10], again[-11])
        )
    print(
        (
            "%s, one process, %d pairs of steps: hooks out %.3f ms, in %.3f ms; in / out: %s "
            "(bar 1.005)"
        )
        % (
            name,
            len(pairs),
            1e3 * statistics.median(b for _, b in pairs),
            1e3 * statistics.median(a for a, _ in pairs),
            ", ".join(said),
        ),
        flush=True,
    )


def pairwise(pairs):
    return statistics.median(a / b for a, b in pairs)


def fastest(pairs):
    tenth = [statistics.quantiles(times, n=10)[0] for times in zip(*pairs)]
    return tenth[0] / tenth[1]


def ours(memroom):
    """Process ids that run this binary; none where there is no binary."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if memroom and os.path.samefile("/proc/%s/exe" % pid, memroom):
                yield pid
        except OSError:
            pass


def resident_bytes(memroom):
    found = [
        int(open("/proc/%s/statm" % pid).read().split()[1]) * os.sysconf("SC_PAGESIZE")
        for pid in ours(memroom)
    ]
    return sum(found), len(found)


def processor_seconds(memroom):
    total = 0
    for pid in ours(memroom):
        fields = open("/proc/%s/stat" % pid).read().rsplit(")", 1)[1].split()
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60, help="for each comparison")
    parser.add_argument("--processes", type=int, default=3, help="on each side")
    parser.add_argument("--only")
    parser.add_argument(
        "--memroom", help="the binary whose `run` is measured; without it the probe alone is"
    )
    parser.add_argument("--child")
    args = parser.parse_args()
    if args.child:
        return train(args.child)
    memroom = os.path.abspath(args.memroom) if args.memroom else None
    for name in [args.only] if args.only else ["gpt2", "resnet50", "resnet50-256"]:
        beside(name, args.seconds, args.processes, memroom)
        in_and_out(name, args.seconds, memroom)


if __name__ == "__main__":
    sys.exit(main())
