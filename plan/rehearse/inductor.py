"""torch.compile in a rehearsal: the real compiler works, and what it wrote is played.

Dynamo, AOTAutograd, its partitioner and Inductor need shapes, not a card. They run here as they
would there, up to the Python program that Inductor writes for each graph: which buffers are asked
for, which are reused, which are given back. That program then runs on fake tensors on the stage.
Its kernels are never compiled, and do nothing.

Where the compiler takes a model apart, what lies between its graphs is played as ever. A model that
it does not take is played as if it were not compiled; the answer says so.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import os
import tempfile
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, Iterator, List, Sequence

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from .recorder import TEMPORARY, WORKSPACE
from .workspace import blas_workspace

if TYPE_CHECKING:
    from torch._ops import OpOverload
    from triton.backends.compiler import GPUTarget

    from .install import Rehearsal
    from .recorder import Recorder
    from .stage import Stage

Program = Callable[[List[Any]], Any]  # what Inductor wrote for a graph: takes its inputs

LEFT_OUT = (
    "torch.compile was left out: compiled code keeps fewer intermediate results than the "
    "rehearsal, which is then an upper bound"
)
FAILED = "torch.compile failed here (%s: %.120s)"
PLAYED = "torch.compile: the program that Inductor wrote for this model was played"
TAKEN_APART = (
    "torch.compile took the model apart into several graphs; what lies between them was played too"
)
OLDEST = (2, 9)  # older ones were not tried


class Compiler:
    """What stands in the place of torch.compile."""

    def __init__(self, rehearsal: Rehearsal) -> None:
        self.rehearsal = rehearsal
        self.stage, self.warn = rehearsal.stage, rehearsal.recorder.warn
        self.real = torch.compile
        # before the script is followed
        self.call, self.linear = torch.nn.Module.__call__, torch.nn.functional.linear
        self.tensor = getattr(torch.tensor, "__wrapped__", torch.tensor)
        self.ready = False
        self.given_up = False

    def compile(self, model: Any = None, **how: Any) -> Any:
        if model is None:
            return lambda m: self.compile(m, **how)
        compiled = self.made(model, model, how)
        if compiled is None:
            return model
        if not isinstance(model, torch.nn.Module):  # a loss, an attention, any function
            return functools.wraps(model)(self.played(compiled, model))
        # an OptimizedModule keeps its callable in its own dictionary
        compiled.__dict__["forward"] = self.played(compiled.forward, model)
        return compiled

    def compile_in_place(self, model: torch.nn.Module, **how: Any) -> None:
        """Module.compile: the module's own calls go to compiled code."""
        compiled = self.made(model, model._call_impl, how)
        if compiled is not None:
            model._compiled_call_impl = self.played(compiled, model._call_impl)

    def made(self, model: Any, call: Callable[..., Any], how: dict[str, Any]) -> Any:
        """What torch.compile makes of a call; None where it is left out."""
        if self.takes(model, how):
            try:
                self.prepare()
                with _disable_current_modes():
                    return self.real(call, **how)
            except Exception as e:  # a torch without Triton, or one that is built otherwise
                self.warn(FAILED % (type(e).__name__, e))
                self.given_up = True
        self.warn(LEFT_OUT)
        return None

    def takes(self, model: Any, how: dict[str, Any]) -> bool:
        version = tuple(int(n) for n in torch.__version__.split(".")[:2])
        return (
            version >= OLDEST
            and (isinstance(model, torch.nn.Module) or inspect.isfunction(model))
            and how.get("backend", "inductor") == "inductor"
            and how.get("mode") in (None, "default", "reduce-overhead")
            and not how.get("options")
            and not how.get("disable")
            and not self.given_up
        )

    def played(self, forward: Callable[..., Any], eager: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: self.play(forward, eager, args, kwargs)

    def play(
        self,
        forward: Callable[..., Any],
        eager: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if self.given_up or threading.current_thread() is not threading.main_thread():
            return eager(*args, **kwargs)
        broken = self.breaks()
        try:
            with self.plain_torch(), fakes_seen():
                out = forward(*args, **kwargs)
            self.rehearsal.recorder.facts["compiled"] = True
            self.warn(PLAYED)
            if self.breaks() > broken:
                self.warn(TAKEN_APART)
            return out
        except Exception as e:
            self.warn(FAILED % (type(e).__name__, e))
        self.given_up = True
        self.warn(LEFT_OUT)
        return eager(*args, **kwargs)

    @contextlib.contextmanager
    def plain_torch(self) -> Iterator[None]:
        """The compiler reads torch's own functions, not those that follow the script."""
        functional, module = torch.nn.functional, torch.nn.Module
        followed = module.__call__, functional.linear, torch.tensor
        module.__call__, functional.linear, torch.tensor = self.call, self.linear, self.tensor
        try:
            yield
        finally:
            module.__call__, functional.linear, torch.tensor = followed

    def breaks(self) -> int:
        from torch._dynamo.utils import counters

        return sum(counters["graph_break"].values())

    # -- the compiler's surroundings
    # ------------------------------------------------------------

    def prepare(self) -> None:
        """Answers what the compiler asks of a card beyond torch.cuda, once."""
        if self.ready:
            return
        self.ready = True
        beside = os.path.dirname(os.path.abspath(self.rehearsal.path))
        # nobody else's cache is touched
        folder = os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp("", "compile-", beside)
        self.rehearsal.recorder.lines.know(os.path.join(folder, "written"))  # by Inductor
        os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
        with fakes_seen(), _disable_current_modes():
            for name in ("_dynamo", "_inductor.async_compile", "_inductor.compile_fx"):
                importlib.import_module("torch." + name)
        _answer_triton()
        _fold_on_host()
        _pad_products()
        _compile_at_once()
        _leave_generators()
        _scalars()
        _play_programs(self.stage)
        _play_graphs(self.rehearsal.recorder, self.rehearsal.card.card["blas"])
        _trace_off_stage(self.stage)
        self.leave_time_out()

    def leave_time_out(self) -> None:
        """Compiling takes longer than many steps: it must not use up a rehearsal's patience."""
        from torch._dynamo import convert_frame
        from torch._inductor import compile_fx

        depth = [0]

        def timed(work: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(work)
            def follow(*args: Any, **kwargs: Any) -> Any:
                depth[0] += 1
                begun = time.process_time()
                try:
                    return work(*args, **kwargs)
                finally:
                    depth[0] -= 1
                    if not depth[0]:
                        self.rehearsal.script.begun += time.process_time() - begun

            return follow

        convert_frame._compile = timed(convert_frame._compile)
        compile_fx.compile_fx_inner = timed(compile_fx.compile_fx_inner)


@contextlib.contextmanager
def fakes_seen() -> Iterator[None]:
    """The class of fake tensors, which fakes.py hides from libraries, is there for the compiler."""
    from torch._subclasses import fake_tensor

    hidden, torch._subclasses.FakeTensor = torch._subclasses.FakeTensor, fake_tensor.FakeTensor
    try:
        yield
    finally:
        torch._subclasses.FakeTensor = hidden


class OnHost(TorchDispatchMode):
    """Constants are folded in host memory."""

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("device") is not None:
            kwargs["device"] = "cpu"
        return func(*args, **kwargs)


def _fold_on_host() -> None:
    from torch._inductor.constant_folding import ConstantFolder
    from torch._inductor.fx_passes.joint_graph import UniformValueConstantFolder

    def on_host(deduce: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def follow(self: Any, node: Any) -> Any:
            with OnHost():
                return deduce(self, node)

        return follow

    for kind in (UniformValueConstantFolder, ConstantFolder):
        if "_deduce_value" in vars(kind):
            kind._deduce_value = on_host(kind._deduce_value)


def _pad_products() -> None:
    """Whether a product of awkward sizes is padded is timed on the card; here it always is."""
    from torch._inductor.fx_passes import pad_mm

    pad_mm.get_cached_should_pad = lambda key: True


def _compile_at_once() -> None:
    """The backward pass is compiled with the forward pass, where it can still be left out. What
    would be timed on the card stays as it was picked.
    """
    from torch._functorch import config
    from torch._inductor.codegen.triton import TritonScheduling

    if hasattr(config, "force_non_lazy_backward_lowering"):
        config.force_non_lazy_backward_lowering = True
    if hasattr(TritonScheduling, "benchmark_codegened_module"):
        TritonScheduling.benchmark_codegened_module = lambda *args, **how: (1.0, "")


def _leave_generators() -> None:
    """A recomputed region gets the card's generator back; its state is a few bytes of the host."""
    from torch._functorch import partitioners

    partitioners.functionalize_rng_ops = lambda joint, forward, backward, *more: (forward, backward)


def _scalars() -> None:
    """A number on the card is made there: on fake tensors torch would look for a real card. The
    patterns of attention are made with such numbers.
    """
    from torch._inductor.fx_passes import fuse_attention

    patterns = fuse_attention._get_sfdp_patterns

    def number(data: float, device: Any = None, **named: Any) -> torch.Tensor:
        return torch.full((), data, device=device, **named)

    def follow(*args: Any, **kwargs: Any) -> Iterator[Any]:
        make, torch.tensor = torch.tensor, number
        try:
            yield from patterns(*args, **kwargs)
        finally:
            torch.tensor = make

    fuse_attention._get_sfdp_patterns = follow


def _answer_triton() -> None:
    import triton
    from triton.backends.compiler import GPUTarget

    class Driver:
        """The card as Triton sees it."""

        def get_current_target(self) -> GPUTarget:
            major, minor = torch.cuda.get_device_capability()
            return GPUTarget("cuda", 10 * major + minor, 32)

        def get_current_device(self) -> int:
            answer: int = torch.cuda.current_device()
            return answer

        def get_current_stream(self, device: Any = None) -> int:
            return 0

        def get_active_torch_device(self) -> torch.device:
            return torch.device("cuda", torch.cuda.current_device())

    triton.runtime.driver.set_active(Driver())
    from torch._inductor.runtime import triton_helpers

    triton_helpers.set_driver_to_gpu = lambda: None  # each kernel's source asks for the real one


class Kernel:
    """A kernel that is not compiled: it writes into buffers that are there. One of which there are
    several forms is timed when it first runs: torch then takes a buffer as large as the card's L2
    cache, and copies of what the kernel changes where they do not raise the peak.
    """

    def __init__(self, stage: Stage, tuner: Any = None) -> None:
        self.stage, self.tuner = stage, tuner
        self.untimed = tuner is not None and len(getattr(tuner, "configs", ())) > 1

    def run(self, *args: Any, **kwargs: Any) -> None:
        if self.untimed:
            self.untimed = False
            self.time(args)

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def time(self, args: tuple[Any, ...]) -> None:
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


def nothing(*args: Any, **kwargs: Any) -> None:
    """Stands for the pool of processes."""


nothing.cache_clear = lambda: None  # torch does so as it ends


def _no_kernels(stage: Stage) -> None:
    """Whatever the compiler asks its pool of compiling processes for is a kernel that does
    nothing.
    """
    from torch._inductor import async_compile, config

    config.compile_threads = 1
    kind = async_compile.AsyncCompile

    def triton(self: Any, name: str, source: str, device_str: str = "cuda") -> Kernel:
        try:
            with _disable_current_modes():
                tuner = async_compile._load_triton_kernel_from_source(name, source)
        except Exception:  # how many forms it has is then not known
            tuner = None
        return Kernel(stage, tuner)

    for name, value in list(vars(kind).items()):
        if name.startswith("__"):
            continue
        if isinstance(value, (classmethod, staticmethod)):
            setattr(kind, name, staticmethod(nothing))
        elif callable(value):
            setattr(kind, name, lambda *args, **kwargs: Kernel(stage))
    kind.triton = triton


def _play_programs(stage: Stage) -> None:
    """Programs that Inductor writes get buffers of the stage, and run on it."""
    guards = torch._C._dynamo.guards

    def empty_on_card(
        size: Sequence[int], stride: Sequence[int], dtype: torch.dtype
    ) -> torch.Tensor:
        return torch.empty_strided(size, stride, dtype=dtype, device="cuda")

    def reinterpret(
        t: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int = 0
    ) -> torch.Tensor:
        return torch.as_strided(t, size, stride, t.storage_offset() + offset)

    guards._empty_strided_cuda = empty_on_card
    guards._reinterpret_tensor = reinterpret
    guards.assert_size_stride = guards.assert_alignment = lambda *args: None
    _no_kernels(stage)


POOL = 1 << 20  # stands for the memory of CUDA graphs: blocks go back to nobody else
WARMING = 2  # calls before a graph is only replayed: one to warm up, one to record
GRAPHS = (
    "torch.compile uses CUDA graphs: their memory is a pool of its own, which is played as such; "
    "what a recording keeps beyond it is not known"
)


def _play_graphs(recorder: Recorder, blas_bytes: int) -> None:
    """A program that becomes a CUDA graph (mode="reduce-overhead") takes its memory from a pool
    that nothing else uses. What changes from call to call is copied into it once. Where a graph is
    recorded, cuBLAS asks for its workspace again.
    """
    from torch._inductor import compile_fx

    def graphed(program: Program, static_input_idxs: Sequence[int] = (), **how: Any) -> Program:
        calls = 0
        copies: list[torch.Tensor] = []

        def run(inputs: list[Any]) -> Any:
            nonlocal calls
            before, recorder.stream = recorder.stream, POOL
            calls += 1
            blas = None
            if calls <= WARMING:
                blas = recorder.alloc(blas_workspace(blas_bytes), "cublas", "", WORKSPACE)
            if calls == WARMING:
                for i, value in enumerate(inputs):
                    if i not in static_input_idxs and isinstance(value, torch.Tensor):
                        if value.device.type == "cuda":
                            copies.append(torch.empty_like(value))
            try:
                return program(inputs)
            finally:
                if blas:
                    recorder.free(blas)
                recorder.stream = before

        recorder.warn(GRAPHS)
        recorder.facts["graphs"] = True
        return run

    compile_fx.cudagraphify = graphed


def _trace_off_stage(stage: Stage) -> None:
    """Dynamo leaves code alone that runs under a mode such as the stage: it is told that there is
    none, and finds none while it traces. The stage's own code is not to be compiled.
    """
    from torch._C._dynamo.eval_frame import set_code_exec_strategy
    from torch._dynamo import convert_frame
    from torch._dynamo.types import FrameAction, FrameExecStrategy

    trace = convert_frame._compile

    def follow(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return trace(*args, **kwargs)

    convert_frame._compile = follow
    for name in (
        "any_torch_dispatch_mode_on_stack",
        "is_in_any_mode_without_ignore_compile_internals",
    ):
        if hasattr(convert_frame, name):
            setattr(convert_frame, name, lambda: False)
    skip = FrameExecStrategy(FrameAction.SKIP, FrameAction.SKIP)
    set_code_exec_strategy(type(stage).__torch_dispatch__.__code__, skip)


def install(rehearsal: Rehearsal) -> None:
    """Called before the script is followed."""
    compiler = Compiler(rehearsal)
    torch.compile = compiler.compile
    torch.nn.Module.compile = lambda self, **how: compiler.compile_in_place(self, **how)
