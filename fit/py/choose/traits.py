"""What can be told of a module, a call or the whole training before anything is measured."""

from typing import Any, Callable, Dict, List, Tuple

import torch

from ..batch.inputs import is_tensor
from ..calls import autocast, drawn, refers, tree
from ..measure import rounding
from ..memory import room
from ..remedies import activation_budget
from .choices import Choice
from .search import AGAIN, runs_twice

# Why a rounding error can become a large one. %s: the function that picks.
PICKED = "the model picks among its own results (%s), and a rounding error can change what it picks"

# A backward pass that leaves its graph.
RETAINS = r"retain_graph\s*=\s*True"

# A policy's actions, a decoder's words: drawn from what the model gives. Data that a script makes
# by chance is not meant.
DRAWS = (
    r"\b(?:OneHot)?(?:Categorical(?:StraightThrough)?|Multinomial)\(|\bgumbel_softmax\("
    r"|\b(?:Bernoulli|Binomial)\((?:logits|probs)\s*="
    r"|\b(?:multinomial|bernoulli)\([^\n]*(?:logits|prob|softmax|sigmoid)"
)

# A loss that matches predictions with targets, or picks the hardest samples.
MATCHES = (
    r"\blinear_sum_assignment\(|\bloss\w*(?:\.\w+\([^()\n]*\))*\.(?:topk|sort)\("
    r"|\b(?:topk|sort)\(\s*loss"
)


# --- of a module


def has_convolutions(module: torch.nn.Module) -> bool:
    """Whether a library may want work spaces for it."""
    return any(isinstance(m, torch.nn.modules.conv._ConvNd) for m in module.modules())


def is_half(module: torch.nn.Module) -> bool:
    """Whether it computes in half precision now."""
    half = (torch.float16, torch.bfloat16)
    parameters = list(module.parameters())
    return autocast.is_on(parameters[0].device) or any(p.dtype in half for p in parameters)


def precision(module: torch.nn.Module) -> str:
    """What results differ by on a card where other kernels or algorithms run, in words; "" where it
    computes in full precision.
    """
    if not is_on_card(module):
        return ""
    if is_half(module):
        return "half precision, about 1e-3"
    if torch.cuda.get_device_capability(next(module.parameters()).device) < (8, 0):
        return ""
    libraries = has_convolutions(module) or any(
        isinstance(m, torch.nn.RNNBase) for m in module.modules()
    )
    tf32 = libraries and torch.backends.cudnn.allow_tf32
    tf32 = tf32 or torch.get_float32_matmul_precision() != "highest"
    return "TF32, about 1e-3" if tf32 else ""


def tries_algorithms(module: torch.nn.Module) -> bool:
    """Whether cuDNN picks its algorithms by what is fastest in the room there is."""
    cudnn = torch.backends.cudnn
    benchmark = cudnn.enabled and cudnn.benchmark and has_convolutions(module)
    return benchmark and is_on_card(module)


def is_on_card(module: torch.nn.Module) -> bool:
    answer: bool = next(module.parameters()).is_cuda
    return answer


def is_compilers_own(module: torch.nn.Module) -> bool:
    """Whether it is what torch.compile returned for another module: hooks inside are not seen."""
    return type(module).__name__ == "OptimizedModule"


# --- of a call


def is_differentiated(args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> bool:
    """Whether something is learnt through what a call is given."""
    return any(is_tensor(leaf) and leaf.requires_grad for leaf in tree.flatten((args, kwargs))[0])


def picks(module: torch.nn.Module, call: Callable[..., Any], inputs: Any) -> str:
    """Why rounding is amplified by what the module picks, or nothing. A compiled module is not run
    for it.
    """
    if activation_budget.is_compiled(module):
        return ""
    name = rounding.picks(module, call, inputs)
    return PICKED % name if name else ""


# --- of the training


def amplifies() -> str:
    """Why small differences grow in this training, as far as that can be seen so far; or nothing.
    AGAIN is read from the script, because it shows itself only in the first backward pass. What a
    script draws after its first step is shown to people, as a rule.
    """
    optimizers = room.optimizers()
    if refers.script_says(r"create_graph\s*=\s*True"):
        return AGAIN
    if any(type(o).__name__ == "LBFGS" for o in optimizers):
        return "LBFGS takes its steps from differences of gradients"
    if drawn.has() and refers.script_says(DRAWS):
        return "samples are drawn from the model's own results, and a rounding error can change one"
    if refers.script_says(MATCHES):
        return "the loss picks among the model's results, and a rounding error can change a pick"
    return "several optimizers answer each other" if has_several_optimizers() else ""


def has_several_optimizers() -> bool:
    """Whether there are optimizers that share no parameter."""
    apart: List[Any] = []
    for optimizer in room.optimizers():
        own = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if all(own.isdisjoint(others) for others in apart):
            apart.append(own)
    return len(apart) > 1


def if_graphs_stay(candidates: List[Choice], free: float) -> List[Choice]:
    """What a backward pass computes again stays as long as its graph does. Where the script retains
    graphs, that is until the next ones are there, so what runs nothing twice is taken if it fits.
    """
    if not refers.script_says(RETAINS):
        return candidates
    once = [c for c in candidates if not runs_twice(c)]
    return once if any(c.needs <= free for c in once) else candidates
