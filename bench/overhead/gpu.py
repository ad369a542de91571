"""What the probe costs on a GPU, and that it changes nothing: GPT-2 small in bf16 (8 x 512) and ResNet-50.

    python bench/overhead/gpu.py [--rounds 3] [--steps 60] [--only gpt2|resnet50]

Each round runs the same training once without and once with the probe, interleaved; a small monitor reads the socket as
memroom does. Printed: the median step time of each, the ratio of the medians (the bar is 1.005), the time inside hooks
by their own counters, and whether the losses are bit-identical. `--window` prints the cost of a recording window apart.
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


def train(name, steps):
    """The child: prints one JSON object with step times and losses."""
    import torch

    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True, warn_only=True)
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

    times, losses = [], []
    for _ in range(steps):
        torch.cuda.synchronize()
        start = time.perf_counter()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())  # waits for the GPU: the time is the step's own
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    print(json.dumps({"times": times[10:], "losses": [x.hex() for x in losses]}))


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


def run(name, steps, monitor=None, **environ):
    env = dict(os.environ, CUBLAS_WORKSPACE_CONFIG=":4096:8", **environ)
    if monitor is not None:
        env.update(PYTHONPATH=PROBE, MEMROOM_PROBE=monitor.path)
    command = [sys.executable, os.path.abspath(__file__), "--child", name, "--steps", str(steps)]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True)
    time.sleep(0.1)
    return json.loads(done.stdout.decode().splitlines()[-1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--only")
    parser.add_argument("--window", action="store_true")
    parser.add_argument("--child")
    args = parser.parse_args()
    if args.child:
        return train(args.child, args.steps)
    for name in ([args.only] if args.only else ["gpt2", "resnet50"]):
        bare, probed, spent, same = [], [], [], True
        for _ in range(args.rounds):
            monitor = Monitor()
            without, with_it = run(name, args.steps), run(name, args.steps, monitor)
            bare += without["times"]
            probed += with_it["times"]
            same = same and without["losses"] == with_it["losses"]
            end = [m for m in monitor.heard if m["t"] == "exit"][-1]
            rows = sum(len(m["rows"]) for m in monitor.heard if m["t"] == "steps")
            spent.append(end["spent_us"] / end["elapsed_us"])
            faults = [m for m in monitor.heard if m["t"] == "fault"]
        print("%s: without %.3f ms, with the probe %.3f ms, ratio %.4f (bar 1.005); inside hooks %.4f %% of the time (bar 0.5 %%); "
              "%d of %d steps read; losses bit-identical: %s; faults %s" % (
                  name, 1e3 * statistics.median(bare), 1e3 * statistics.median(probed),
                  statistics.median(probed) / statistics.median(bare), 100 * statistics.median(spent), rows, args.steps, same, faults))
        if args.window:
            monitor = Monitor({"id": 1, "do": "record_stacks", "steps": 20})
            recorded = run(name, 30, monitor)["times"]
            print("%s: inside a recording window %.3f ms a step" % (name, 1e3 * statistics.median(recorded)))


if __name__ == "__main__":
    sys.exit(main())
