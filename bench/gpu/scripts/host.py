"""Runs a training script that knows nothing of this benchmark: `python host.py SCRIPT [flags]`.

FIT_FRACTION makes the card smaller before the script begins; FIT_NATIVE=1 computes without cuDNN;
FIT_BUDGET is the activation memory
budget of torch.compile; FIT_REGIONS names classes whose modules are checkpointed in what is
compiled; FIT_SIDE names the file for its allocator peaks and the times of its steps afterwards;
FIT_WATCH=1 tells on standard error which requests for memory failed, and where; FIT_TURN names a
folder where FIT_TURNS processes wait for each other behind their eighth step, and then compute in
turn, so that steps are timed with nobody beside them; FIT_PROFILE=1 adds where the last six steps
spent their time in Python;
FIT_TINY=1 gives the flags of the script's line "# tiny: ...", with which it runs on a CPU in
seconds.
"""

import cProfile
import fcntl
import functools
import glob
import io
import json
import os
import pstats
import re
import runpy
import statistics
import sys
import time
import traceback

import torch
import torch._functorch.config


def process_began():
    """The time at which this process was started, by the kernel's account."""
    ticks = int(open("/proc/self/stat").read().rsplit(")", 1)[1].split()[19])
    up = float(open("/proc/uptime").read().split()[0])
    return time.time() - up + ticks / os.sysconf("SC_CLK_TCK")


TURN_AT, PROFILE_AT = 8, 14  # steps
TURN_SECONDS = 120  # that a process waits for others at the most


class Steps:
    """Standard output that notes when a line `step N loss ...` passes."""

    def __init__(self, out):
        self.out, self.first, self.last, self.gaps = out, None, None, []
        self.turn, self.profile = None, None

    def write(self, text):
        if text.startswith("step "):
            self._step()
        return self.out.write(text)

    def _step(self):
        now = time.time()
        if self.first is None:
            self.first = now
        else:
            self.gaps.append(now - self.last)
        if os.environ.get("FIT_TURN") and not self.turn and len(self.gaps) == TURN_AT:
            self.turn, self.gaps = take_turn(), []
        if os.environ.get("FIT_PROFILE") and len(self.gaps) == PROFILE_AT - TURN_AT and self.turn:
            self.profile = cProfile.Profile()
            self.profile.enable()
        self.last = time.time()

    def __getattr__(self, name):
        return getattr(self.out, name)

    def side(self):
        gaps = self.gaps[1:] if self.turn else self.gaps[len(self.gaps) // 2 :]
        side = {
            "first": round(self.first - process_began(), 2) if self.first else None,
            "in_turn": bool(self.turn),
        }
        if self.profile:
            self.profile.disable()
            text = io.StringIO()
            pstats.Stats(self.profile, stream=text).sort_stats("tottime").print_stats(40)
            side["profile"] = text.getvalue()
            gaps = gaps[: PROFILE_AT - TURN_AT - 1]
        return dict(side, seconds=statistics.median(gaps) if gaps else None)


def take_turn():
    """Waits until as many processes have come as far, then for those before this one. The file that
    it gives is the turn, for as long as it is open.
    """
    folder, until = os.environ["FIT_TURN"], time.time() + TURN_SECONDS
    open(os.path.join(folder, "here-%d" % os.getpid()), "w").close()
    while time.time() < until:
        if len(glob.glob(os.path.join(folder, "here-*"))) >= int(os.environ["FIT_TURNS"]):
            break
        time.sleep(0.1)
    turn = open(os.path.join(folder, "turn"), "w")
    fcntl.flock(turn, fcntl.LOCK_EX)
    return turn


def checkpoint_by_hand(names):
    """What somebody would write: blocks of these classes are checkpointed, then it is compiled."""
    from torch.utils.checkpoint import checkpoint

    def wrapped(compile_it):
        @functools.wraps(compile_it)
        def compile_with_regions(model, *args, **kwargs):
            # Module.compile hands a bound method on to torch.compile
            for m in model.modules() if isinstance(model, torch.nn.Module) else ():
                if type(m).__name__ in names:
                    m.forward = functools.partial(checkpoint, m.forward, use_reentrant=False)
            return compile_it(model, *args, **kwargs)

        return compile_with_regions

    torch.compile = wrapped(torch.compile)
    torch.nn.Module.compile = wrapped(torch.nn.Module.compile)


def watch_requests():
    """Tells of requests that fail, those that a library does without included."""

    def failed(device, requested, total, free):
        held = torch.cuda.memory_allocated(device)
        where = [f.name for f in traceback.extract_stack()[-12:-1]]
        print("request failed: %d with %d held in %s" % (requested, held, where), file=sys.stderr)

    attach = torch._C._cuda_attach_out_of_memory_observer
    torch.cuda._lazy_call(lambda: attach(failed))


def main():
    script = sys.argv[1]
    tiny = (
        " ".join(re.findall(r"tiny:(.*(?:\n# .*)*)", open(script).read())[:1])
        .replace("\n#", " ")
        .split()
        if os.environ.get("FIT_TINY")
        else []
    )
    sys.argv = [script] + tiny + sys.argv[2:]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.deterministic = True
    if os.environ.get("FIT_NATIVE"):
        torch.backends.cudnn.enabled = False
    if os.environ.get("FIT_BUDGET"):  # by hand what --fit does to compiled scripts
        torch._functorch.config.activation_memory_budget = float(os.environ["FIT_BUDGET"])
    if os.environ.get("FIT_REGIONS"):
        checkpoint_by_hand(os.environ["FIT_REGIONS"].split(","))
    if torch.cuda.is_available() and os.environ.get("FIT_FRACTION"):
        torch.cuda.set_per_process_memory_fraction(float(os.environ["FIT_FRACTION"]))
    if torch.cuda.is_available() and os.environ.get("FIT_WATCH"):
        watch_requests()
    steps = sys.stdout = Steps(sys.stdout)
    runpy.run_path(script, run_name="__main__")
    if os.environ.get("FIT_SIDE"):
        side = steps.side()
        if torch.cuda.is_available():
            side.update(
                reserved=torch.cuda.max_memory_reserved(),
                allocated=torch.cuda.max_memory_allocated(),
                total=torch.cuda.mem_get_info()[1],
                failed_requests=torch.cuda.memory_stats().get("num_ooms"),
            )
        with open(os.environ["FIT_SIDE"], "w") as f:
            json.dump(side, f)


main()
