"""Gives the cache of the allocator back after a step, when it is what is in the way."""

from typing import Any, Callable, Dict

import torch


def empty_cache(params: Dict[Any, Any], say: Callable[..., Any]) -> None:
    """After a step, when the allocator holds much that nobody uses and the wall is near."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    def look(optimizer: Any, args: Any, kwargs: Any) -> None:
        if not torch.cuda.is_initialized():
            return
        free, total = torch.cuda.mem_get_info()
        reserved, allocated = torch.cuda.memory_reserved(), torch.cuda.memory_allocated()
        if reserved - allocated > 0.2 * (reserved + free) and free < 0.1 * (reserved + free):
            torch.cuda.empty_cache()

    register_optimizer_step_post_hook(look)
    say(
        "applied",
        "the cache is emptied after a step when it is what is in the way",
        id="empty_cache",
        equivalence="exact",
    )
