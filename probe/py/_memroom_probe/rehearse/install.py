"""Starts a rehearsal when the script imports torch, and ends it after a few steps or with the
script.
"""

import atexit
import os
import shutil
import sys
from types import ModuleType
from typing import Any, Dict, List, NoReturn, Optional

from . import recorder as record

STEPS = 3
OLDEST = (2, 1)  # older ones cannot run a backward pass on fake tensors of a card
OTHERS = {"tensorflow": "TensorFlow", "jax": "JAX"}


class Rehearsal:
    """One rehearsal in one process: waits for torch, then puts card, stage and script in place."""

    def __init__(self, target: Dict[str, Any], path: str) -> None:
        self.target, self.path = target, path
        self.recorder = record.Recorder()
        self.written = False
        self.error: Optional[str] = None
        self.other: Optional[str] = None
        self.leftovers: List[str] = []  # folders to remove at the end
        # whose rules the record follows where they are not PyTorch's
        self.allocator: Optional[str] = None

    def begin(self, torch: Any) -> None:
        if tuple(int(n) for n in torch.__version__.split(".")[:2]) < OLDEST:
            self.fail(
                "a rehearsal needs torch 2.1 or newer, this is %s: rehearse with a newer one, or "
                "plan from the model's config.json" % torch.__version__
            )
        from . import card, fakes, rules, script, stage, waiting, world

        self.torch = torch
        waiting.watch(self)
        try:
            self.card = card.Card(self.target, self.recorder)
            self.stage = stage.Stage(self.recorder, rules.table(self.card))
            self.stage.card = self.card
            self._hide_cards()
            self.card.install()
            fakes.install(self.stage)
            rules.install(self.stage)
            world.install(self)
            self.script = script.Script(
                self.stage,
                self.recorder,
                int(self.target.get("steps") or STEPS),
                self.over,
                self.fail,
            )
            self.script.install()
            torch._C._set_only_lift_cpu_tensors(True)
            self.stage.__enter__()
        except NotImplementedError as e:
            self.fail(str(e))

    def _hide_cards(self) -> None:
        """A real card of this machine must not be touched: torch counts cards once, and counts
        none.
        """
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        self.torch.cuda.device_count()
        self.torch._C._ensureCUDADeviceGuardSet()
        if visible is None:
            del os.environ["CUDA_VISIBLE_DEVICES"]
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = visible

    def meet(self, module: ModuleType) -> None:
        """The script imports a framework whose memory is not PyTorch's."""
        self.other = OTHERS[module.__name__]

    def fail(self, text: str) -> NoReturn:
        """Ends the rehearsal with a sentence for the user."""
        self.error = text
        self.over("error")

    def over(self, reason: str) -> NoReturn:
        """Writes the record and ends the process: nothing of the script runs after the rehearsal,
        not even its exits.
        """
        self.write(reason)
        for folder in self.leftovers:
            shutil.rmtree(folder, ignore_errors=True)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:
                pass
        os._exit(0)

    def write(self, reason: str) -> None:
        if self.written:
            return
        self.written = True
        torch = sys.modules.get("torch")
        if not self.recorder.events and self.error is None and os.path.exists(self.path):
            return  # a process that the command started has written the record
        head = {
            "torch": getattr(torch, "__version__", None),
            "python": sys.version.split()[0],
            "target": self.target,
            "other": self.other,
            "allocator": self.allocator,
        }
        end = {"reason": reason, "error": self.error, "steps": self.recorder.step}
        self.recorder.write(self.path, head, end)


def install(target: Optional[Dict[str, Any]], out_path: str) -> Rehearsal:
    """The probe's entry: `target` describes the card (see card.DEFAULTS; steps), the record goes to
    out_path.
    """
    from ..imports import when_imported
    from . import keras_fit, world

    world.quiet_environment()
    rehearsal = Rehearsal(target or {}, out_path)
    world.watch(rehearsal)
    keras_fit.watch(rehearsal)
    when_imported("torch", rehearsal.begin)
    for name in OTHERS:
        when_imported(name, rehearsal.meet)
    atexit.register(rehearsal.write, "end")
    return rehearsal
