"""torch.compile in a rehearsal: the real compiler works, and what it wrote is played.

Dynamo, AOTAutograd, its partitioner and Inductor need shapes, not a card. They run here as they
would there, up to the Python program that Inductor writes for each graph: which buffers are asked
for, which are reused, which are given back. That program then runs on fake tensors on the stage.
Its kernels are never compiled, and do nothing.

A model that the compiler takes apart into several graphs, or does not take, is played as if it were
not compiled; the answer says so.
"""

import atexit
import importlib
import os
import shutil
import sys
import tempfile
import threading

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from .recorder import TEMPORARY

LEFT_OUT = (
    "torch.compile was left out: compiled code keeps fewer intermediate results than the "
    "rehearsal, which is then an upper bound"
)
PLAYED = "torch.compile: the program that Inductor wrote for this model was played"
TAKEN_APART = "torch.compile took the model apart into %d graphs"
OLDEST = (2, 9)  # older ones were not tried


class Compiler:
    """What stands in the place of torch.compile."""

    def __init__(self, rehearsal):
        self.rehearsal = rehearsal
        self.stage, self.warn = rehearsal.stage, rehearsal.recorder.warn
        self.real = torch.compile
        # before the script is followed
        self.call, self.linear = torch.nn.Module.__call__, torch.nn.functional.linear
        self.ready = False
        self.given_up = False

    def compile(self, model=None, **how):
        if model is None:
            return lambda m: self.compile(m, **how)
        if not self.takes(model, how):
            self.warn(LEFT_OUT)
            return model
        return self.wrapped(model, how)

    def takes(self, model, how):
        version = tuple(int(n) for n in torch.__version__.split(".")[:2])
        return (
            version >= OLDEST
            and isinstance(model, torch.nn.Module)
            and how.get("backend", "inductor") == "inductor"
            and how.get("mode") in (None, "default")
            and not how.get("options")
            and not how.get("disable")
            and not self.given_up
        )

    def wrapped(self, model, how):
        """The module that torch.compile would give: calls go to compiled code, all else to the
        model.
        """
        compiler = self
        self.prepare()
        with _disable_current_modes():
            compiled = self.real(model, **how)
        forward = compiled.forward

        def play(*args, **kwargs):
            return compiler.play(compiled, forward, model, args, kwargs)

        # an OptimizedModule keeps its callable in its own dictionary
        compiled.__dict__["forward"] = play
        return compiled

    def in_place(self, model, how):
        """Module.compile: the module's own calls go to compiled code."""
        compiled = self.wrapped(model, how)
        model._compiled_call_impl = compiled.__dict__["forward"]

    def play(self, compiled, forward, model, args, kwargs):
        if self.given_up or threading.current_thread() is not threading.main_thread():
            return model(*args, **kwargs)
        followed, linear = torch.nn.Module.__call__, torch.nn.functional.linear
        torch.nn.Module.__call__ = self.call
        torch.nn.functional.linear = self.linear
        broken = self.breaks()
        try:
            with _disable_current_modes():
                out = forward(*args, **kwargs)
            if self.breaks() == broken:
                self.rehearsal.recorder.facts["compiled"] = True
                self.warn(PLAYED)
                return out
            why = TAKEN_APART % (self.breaks() - broken + 1)
        except Exception as e:
            _debug()
            why = "torch.compile failed here (%s: %.120s)" % (type(e).__name__, e)
        finally:
            torch.nn.Module.__call__, torch.nn.functional.linear = followed, linear
        self.given_up = True
        self.warn(why)
        self.warn(LEFT_OUT)
        return model(*args, **kwargs)

    def breaks(self):
        from torch._dynamo.utils import counters

        return sum(counters["graph_break"].values())

    # -- the compiler's surroundings
    # ------------------------------------------------------------

    def prepare(self):
        """Answers what the compiler asks of a card beyond torch.cuda, once."""
        if self.ready:
            return
        self.ready = True
        folder = tempfile.mkdtemp(prefix="memroom-compile-")
        atexit.register(shutil.rmtree, folder, True)
        self.rehearsal.leftovers.append(folder)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder  # nobody else's cache is touched
        os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
        from torch._subclasses import fake_tensor

        # hidden from libraries by fakes.py; the compiler has to see it
        torch._subclasses.FakeTensor = fake_tensor.FakeTensor
        with _disable_current_modes():
            for name in ("_dynamo", "_inductor.async_compile", "_inductor.compile_fx"):
                importlib.import_module("torch." + name)
        _answer_triton()
        _fold_on_host()
        _pad_products()
        _scalars()
        _play_programs(self.stage)


class OnHost(TorchDispatchMode):
    """Constants are folded in host memory."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if kwargs.get("device") is not None:
            kwargs["device"] = "cpu"
        return func(*args, **kwargs)


def _fold_on_host():
    from torch._inductor.constant_folding import ConstantFolder
    from torch._inductor.fx_passes.joint_graph import UniformValueConstantFolder

    def on_host(deduce):
        def follow(self, node):
            with OnHost():
                return deduce(self, node)

        return follow

    for kind in (UniformValueConstantFolder, ConstantFolder):
        if "_deduce_value" in vars(kind):
            kind._deduce_value = on_host(kind._deduce_value)


def _pad_products():
    """Whether a product of awkward sizes is padded is timed on the card; here it always is."""
    from torch._inductor.fx_passes import pad_mm

    pad_mm.get_cached_should_pad = lambda key: True


def _scalars():
    """A number on the card is made there: on fake tensors torch would look for a real card."""
    make = torch.tensor

    def tensor(data, *args, **named):
        device = named.get("device")
        if (
            isinstance(data, (int, float))
            and device is not None
            and torch.device(device).type == "cuda"
        ):
            grad = named.pop("requires_grad", False)
            named.setdefault("dtype", torch.float32 if isinstance(data, float) else torch.int64)
            return torch.full((), data, **named).requires_grad_(grad)
        return make(data, *args, **named)

    torch.tensor = tensor


def _answer_triton():
    import triton
    from triton.backends.compiler import GPUTarget

    class Driver:
        """The card as Triton sees it."""

        def get_current_target(self):
            major, minor = torch.cuda.get_device_capability()
            return GPUTarget("cuda", 10 * major + minor, 32)

        def get_current_device(self):
            return 0

        def get_current_stream(self, device=None):
            return 0

        def get_active_torch_device(self):
            return torch.device("cuda", 0)

    triton.runtime.driver.set_active(Driver())


class Kernel:
    """A kernel that is not compiled: it writes into buffers that are there. One of which there are
    several forms is timed when it first runs: torch then takes a buffer as large as the card's L2
    cache, and copies of what the kernel changes where they do not raise the peak.
    """

    def __init__(self, stage, tuner=None):
        self.stage, self.tuner = stage, tuner
        self.untimed = tuner is not None and len(getattr(tuner, "configs", ())) > 1

    def run(self, *args, **kwargs):
        if self.untimed:
            self.untimed = False
            self.time(args)

    def __call__(self, *args, **kwargs):
        pass

    def time(self, args):
        recorder = self.stage.recorder
        names = getattr(self.tuner.fn, "arg_names", ())
        changed = set(getattr(self.tuner, "mutated_arg_names", ()))
        left = recorder.peak - recorder.allocated
        sizes = []
        for name, value in zip(names, args):
            if name in changed and isinstance(value, torch.Tensor):
                size = value.numel() * value.element_size()
                if size <= left:
                    left -= size
                    sizes.append(size)
        for held in (0, torch.cuda.get_device_properties().L2_cache_size):
            taken = [recorder.alloc(n, "autotune", "", TEMPORARY) for n in (held, *sizes)]
            for ident in reversed(taken):
                recorder.free(ident)


def _no_kernels(stage):
    """Whatever the compiler asks its pool of compiling processes for is a kernel that does
    nothing.
    """
    from torch._inductor import async_compile, config

    config.compile_threads = 1
    kind = async_compile.AsyncCompile

    def triton(self, name, source, device_str="cuda"):
        try:
            with _disable_current_modes():
                tuner = async_compile._load_triton_kernel_from_source(name, source)
        except Exception as e:  # how many forms it has is then not known
            _debug()
            tuner = None
        if os.environ.get("DBG"): print("KERNEL", name[:30], tuner and len(tuner.configs), file=sys.stderr)
        return Kernel(stage, tuner)

    for name, value in list(vars(kind).items()):
        if name.startswith("__"):
            continue
        if isinstance(value, (classmethod, staticmethod)):
            setattr(kind, name, staticmethod(lambda *args, **kwargs: None))
        elif callable(value):
            setattr(kind, name, lambda *args, **kwargs: Kernel(stage))
    kind.triton = triton


def _play_programs(stage):
    """Programs that Inductor writes get buffers of the stage, and run on it."""
    from torch._inductor import output_code

    guards = torch._C._dynamo.guards

    def empty_on_card(size, stride, dtype):
        return torch.empty_strided(size, stride, dtype=dtype, device="cuda")

    def reinterpret(t, size, stride, offset=0):
        return torch.as_strided(t, size, stride, t.storage_offset() + offset)

    guards._empty_strided_cuda = empty_on_card
    guards._reinterpret_tensor = reinterpret
    guards.assert_size_stride = guards.assert_alignment = lambda *args: None
    _no_kernels(stage)
    run = output_code.CompiledFxGraph.__call__

    def follow(graph, inputs):
        if stage_is_on(stage):
            return run(graph, inputs)
        with stage:
            return run(graph, inputs)

    output_code.CompiledFxGraph.__call__ = follow


def stage_is_on(stage):
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    return stage in _get_current_dispatch_mode_stack()


def install(rehearsal):
    """Called before the script is followed."""
    compiler = Compiler(rehearsal)

    def compile_module(self, *args, **how):
        if compiler.takes(self, how):
            compiler.in_place(self, how)
        else:
            rehearsal.recorder.warn(LEFT_OUT)

    torch.compile = compiler.compile
    torch.nn.Module.compile = compile_module


def _debug():
    if os.environ.get("DBG"):
        import traceback
        traceback.print_exc()
