"""Starts a rehearsal when the script imports torch, and ends it after a few steps or with the
script.
"""

import atexit
import os
import sys
from types import ModuleType
from typing import Any, Dict, NoReturn, Optional, Set

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
        self.status: Any = None  # that the script ends with, where it says so
        self.error: Optional[str] = None
        self.other: Optional[str] = None
        self.read: Set[str] = set()  # files that the script has opened
        self.adopted: Any = None  # what was real before, see inside.py
        # whose rules the record follows where they are not PyTorch's
        self.allocator: Optional[str] = None

    def begin(self, torch: Any) -> None:
        if tuple(int(n) for n in torch.__version__.split(".")[:2]) < OLDEST:
            self.fail(
                "a rehearsal needs torch 2.1 or newer, this is %s: rehearse with a newer one, or "
                "plan from the model's config.json" % torch.__version__
            )
        from . import card, elements, fakes, rules, script, stage, typed, waiting, world

        self.torch = torch
        self.recorder.lines.know(torch.__file__)
        waiting.watch(self)
        try:
            self.card = card.Card(self.target, self.recorder)
            self.stage = stage.Stage(self.recorder, rules.table(self.card))
            self.stage.card = self.card
            self._hide_cards()
            self.card.install()
            fakes.install(self.stage)
            elements.install(self.stage)
            typed.install()
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
            self.stage.before_write = self.script.before_write
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
        self._leave(0)

    def end(self) -> None:
        """The script is over. Python would take apart fakes and the stage that they play on in any
        order and crash; nothing of the script runs after this. It ends with the script's own code,
        as Python would.
        """
        script = getattr(self, "script", None)
        self.recorder.step += script is not None and script.updating
        self.write("end")
        if "torch" not in sys.modules:
            return
        raised = getattr(sys, "last_type", None)  # what nobody caught
        if raised is not None:
            self._leave(130 if issubclass(raised, KeyboardInterrupt) else 1)
        if self.status is None or isinstance(self.status, int):
            self._leave((self.status or 0) & 255)
        self._leave(1)  # a sentence, which Python has printed

    def _leave(self, status: int) -> NoReturn:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:
                pass
        os._exit(status)

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
        end: Dict[str, Any] = {"reason": reason, "error": self.error, "steps": self.recorder.step}
        end["files"] = self.recorder.lines.files(self.read)
        end["folders"] = self.recorder.lines.folders()
        self.recorder.write(self.path, head, end)


def follow(rehearsal: Rehearsal) -> None:
    """Waits for what the script imports, and keeps what it writes to itself."""
    from ..imports import when_imported
    from . import keras_fit, overlay, world

    world.quiet_environment()
    world.watch(rehearsal)
    keras_fit.watch(rehearsal)
    if not hasattr(rehearsal, "torch"):
        when_imported("torch", rehearsal.begin)
    for name in OTHERS:
        when_imported(name, rehearsal.meet)
    overlay.install(rehearsal)


def install(target: Optional[Dict[str, Any]], out_path: str) -> Rehearsal:
    """The probe's entry: `target` describes the card (see card.DEFAULTS; steps), the record goes to
    out_path.
    """
    rehearsal = Rehearsal(target or {}, out_path)
    follow(rehearsal)
    atexit.register(rehearsal.end)
    ends = sys.exit

    def leave(status: Any = None) -> NoReturn:
        rehearsal.status = status
        ends(status)

    sys.exit = leave
    return rehearsal
