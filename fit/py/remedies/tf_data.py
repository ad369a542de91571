"""tf.data pipelines that work on one element at a time and read one ahead, as data loaders with one
worker do. The order of elements stays.
"""

import functools
from typing import Any, Callable, Set

# Where num_parallel_calls stands behind the first argument; prefetch has its number there.
PLACES = {"map": 0, "batch": 1}


def install(tensorflow: Any, say: Callable[..., Any]) -> None:
    dataset = tensorflow.data.Dataset
    told: Set[str] = set()

    def tell(equivalence: str) -> None:
        if equivalence not in told:
            told.add(equivalence)
            words = "tf.data: one element in work at a time, one read ahead"
            say("applied", words, equivalence=equivalence)

    prefetch = dataset.prefetch

    @functools.wraps(prefetch)
    def one_ahead(self: Any, buffer_size: Any, *args: Any, **kwargs: Any) -> Any:
        if _many(buffer_size):
            buffer_size = 1
            tell("exact")
        return prefetch(self, buffer_size, *args, **kwargs)

    def one_by_one(original: Any, place: int) -> Any:
        @functools.wraps(original)
        def method(self: Any, first: Any, *args: Any, **kwargs: Any) -> Any:
            if not _many(dict(enumerate(args)).get(place, kwargs.get("num_parallel_calls"))):
                return original(self, first, *args, **kwargs)
            if len(args) > place:
                args = args[:place] + (1,) + args[place + 1 :]
            else:
                kwargs["num_parallel_calls"] = 1
            made = original(self, first, *args, **kwargs)
            tell("expected" if _draws(made) else "exact")
            return made

        return method

    dataset.prefetch = one_ahead
    for name, place in PLACES.items():
        setattr(dataset, name, one_by_one(getattr(dataset, name), place))


def _many(asked: Any) -> bool:
    """More than one; AUTOTUNE is -1."""
    return isinstance(asked, int) and (asked > 1 or asked < 0)


def _draws(dataset: Any) -> bool:
    """Whether the function of a map has a state, as random numbers do: elements that are worked on
    at the same time would take their turns in any order.
    """
    mapped = getattr(dataset, "_map_func", None)
    return mapped is not None and any(
        op.op_def.is_stateful for op in mapped.function.graph.get_operations()
    )
