"""Sequences that a trial packs must be as long as they are said to be.

A trial may cut sequences shorter and leave a list of their lengths as it was. torch packs them all
the same, and a recurrent layer of cuDNN's then reads beyond their end: no later call of the process
works on that card.
"""

import contextlib
from typing import Any, Iterator

import torch


@contextlib.contextmanager
def checked() -> Iterator[None]:
    """While this is entered, packing sequences that are shorter than their lengths is an error."""
    functions: Any = torch._VF
    original = functions._pack_padded_sequence
    wrapped = vars(functions).get("_pack_padded_sequence")

    def pack(input: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> Any:
        there = input.size(1 if batch_first else 0)
        if lengths.numel() and int(lengths.max()) > there:
            raise ValueError("a sequence of %d is said to have %d" % (there, int(lengths.max())))
        return original(input, lengths, batch_first)

    functions._pack_padded_sequence = pack
    try:
        yield
    finally:
        if wrapped is None:
            del functions._pack_padded_sequence
        else:
            functions._pack_padded_sequence = wrapped
