"""What the probe costs on a GPU, and that it changes nothing: GPT-2 small in bf16 (8 x 512) and ResNet-50.

    python bench/overhead/gpu.py [--turns 30] [--only gpt2|resnet50] [--window] [--memroom bin/memroom]

Two processes train the same model, one with the probe and one without, and take turns of ten steps on the card, so that
whatever else disturbs the machine disturbs both. A small monitor reads the socket as memroom does. Printed: the median step
time of each, the ratio of the medians (the bar is 1.005), the time inside hooks by their own counters, and whether the
losses are bit-identical. `--window` prints the cost of a recording window apart.
"""

import argparse
import json
import os
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
    """The child: for each number on stdin, runs as many steps and prints a JSON object with their times and losses."""
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

        model = torchvision.models.resnet50().cuda().to(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

        def loss_of():
            x = torch.randn(64, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
            y = torch.randint(0, 1000, (64,), device="cuda")
            with torch.autocast("cuda", torch.bfloat16):
                return torch.nn.functional.cross_entropy(model(x), y)

    for line in sys.stdin:
        times, losses = [], []
        for _ in range(int(line)):
            torch.cuda.synchronize()
            start = time.perf_counter()
            loss = loss_of()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(loss.item())  # waits for the GPU: the time is the step's own
            torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
        print(json.dumps({"times": times, "losses": [x.hex() for x in losses]}), flush=True)


class Monitor:
    """Reads what probes say; `asked` is sent to each as it connects."""

    def __init__(self, *asked):
        self.path = os.path.join(tempfile.mkdtemp(), "s")
        self.heard, self.asked = [], asked
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(self.path)
        self.server.listen(16)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            connection, _ = self.server.accept()
            threading.Thread(target=self._read, args=(connection,), daemon=True).start()

    def _read(self, connection):
        for command in self.asked:
            connection.sendall(json.dumps(dict(command, t="do")).encode() + b"\n")
        for line in connection.makefile("rb"):
            self.heard.append(json.loads(line))


class Trainer:
    """A training process that runs steps when told to."""

    def __init__(self, name, monitor=None, memroom=None):
        env = dict(os.environ, CUBLAS_WORKSPACE_CONFIG=":4096:8")
        if monitor is not None:
            env.update(PYTHONPATH=PROBE, MEMROOM_PROBE=monitor.path)
        command = [sys.executable, os.path.abspath(__file__), "--child", name]
        if memroom:
            env["MEMROOM_HOME"] = tempfile.mkdtemp()
            command = [memroom, "run", "--"] + command
        self.process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, universal_newlines=True)
        self.times, self.losses = [], []

    def steps(self, count, keep=True):
        self.process.stdin.write("%d\n" % count)
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        self.losses += answer["losses"]
        if keep:
            self.times += answer["times"]

    def end(self):
        self.process.stdin.close()
        self.process.wait()
        time.sleep(0.2)


def measure(name, turns):
    monitor = Monitor()
    bare, probed = Trainer(name), Trainer(name, monitor)
    for trainer in (bare, probed):
        trainer.steps(15, keep=False)
    for turn in range(turns):
        for trainer in ((bare, probed) if turn % 2 == 0 else (probed, bare)):
            trainer.steps(2, keep=False)  # the first steps after a change of process find cold caches
            trainer.steps(10)
    bare.end()
    probed.end()
    rows = [row for m in monitor.heard if m["t"] == "steps" for row in m["rows"]]
    told = [m for m in monitor.heard if m["t"] == "steps"]
    busy = sum(row[3] for row in rows if row[3] < 10 * statistics.median(r[3] for r in rows))
    spent = told[-1]["spent_us"] - told[0]["spent_us"]
    print("%s: without %.3f ms, with the probe %.3f ms, ratio %.4f (bar 1.005); inside hooks %.4f %% of step time (bar 0.5 %%); "
          "%d of %d steps read; losses bit-identical: %s; faults %s" % (
              name, 1e3 * statistics.median(bare.times), 1e3 * statistics.median(probed.times),
              statistics.median(probed.times) / statistics.median(bare.times), 100.0 * spent / busy, len(rows),
              len(probed.losses), bare.losses == probed.losses, [m for m in monitor.heard if m["t"] == "fault"]), flush=True)


def whole(name, turns, memroom):
    """The bar itself: the same training under `memroom run`, with its monitor reading NVML four times a second."""
    bare, watched = Trainer(name), Trainer(name, memroom=os.path.abspath(memroom))
    for trainer in (bare, watched):
        trainer.steps(15, keep=False)
    before, began = processor_seconds(memroom), time.time()
    for turn in range(turns):
        for trainer in ((bare, watched) if turn % 2 == 0 else (watched, bare)):
            trainer.steps(2, keep=False)
            trainer.steps(10)
    resident, processes = resident_bytes(memroom)
    share = (processor_seconds(memroom) - before) / (time.time() - began)
    bare.end()
    watched.end()
    print("%s under memroom run: without %.3f ms, with %.3f ms, ratio %.4f (bar 1.005); our %d processes: %.1f MiB resident (bar 40), %.2f %% of a core (bar 1); "
          "losses bit-identical: %s" % (name, 1e3 * statistics.median(bare.times), 1e3 * statistics.median(watched.times),
                                        statistics.median(watched.times) / statistics.median(bare.times), processes, resident / 2**20, 100 * share,
                                        bare.losses == watched.losses), flush=True)


def ours(memroom):
    """Process ids that run this binary."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.path.samefile("/proc/%s/exe" % pid, memroom):
                yield pid
        except OSError:
            pass


def resident_bytes(memroom):
    found = [int(open("/proc/%s/statm" % pid).read().split()[1]) * os.sysconf("SC_PAGESIZE") for pid in ours(memroom)]
    return sum(found), len(found)


def processor_seconds(memroom):
    total = 0
    for pid in ours(memroom):
        fields = open("/proc/%s/stat" % pid).read().rsplit(")", 1)[1].split()
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def window(name):
    """The cost of recording stacks, against the same process before."""
    monitor = Monitor({"id": 1, "do": "record_stacks", "steps": 40})
    trainer = Trainer(name, monitor)
    trainer.steps(10, keep=False)
    trainer.steps(30)
    inside = statistics.median(trainer.times)
    trainer.times = []
    trainer.steps(10, keep=False)
    trainer.steps(30)
    trainer.end()
    stacks = [m for m in monitor.heard if m["t"] == "stacks"]
    print("%s: inside a recording window %.3f ms a step, after it %.3f ms; %d stacks told" % (
        name, 1e3 * inside, 1e3 * statistics.median(trainer.times), len(stacks)), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--only")
    parser.add_argument("--window", action="store_true")
    parser.add_argument("--memroom", help="this binary's `run` around one of the two, instead of the probe alone")
    parser.add_argument("--child")
    args = parser.parse_args()
    if args.child:
        return train(args.child)
    for name in ([args.only] if args.only else ["gpt2", "resnet50"]):
        if args.memroom:
            whole(name, args.turns, args.memroom)
        else:
            measure(name, args.turns)
        if args.window:
            window(name)


if __name__ == "__main__":
    sys.exit(main())
