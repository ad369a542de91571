"""The scratch that a convolution or a recurrent network takes and gives back while it runs.

The allocator counts the bytes that were asked for, now and at their highest. What an operation
asked for beyond what it leaves behind is its scratch; the operation's tensors are made before, so
that nothing else comes and goes with it.
"""

import warnings
from typing import Any, Callable, Dict, Optional, Sequence, Tuple


class Meter:
    """Requested bytes of the caching allocator of the current device."""

    def __init__(self, torch: Any) -> None:
        self.cuda = torch.cuda

    def start(self) -> None:
        self.cuda.synchronize()
        self.cuda.reset_peak_memory_stats()
        self.before = self.read("current")

    def read(self, which: str) -> int:
        return int(self.cuda.memory_stats()["requested_bytes.all." + which])

    def passing(self) -> int:
        """Bytes that came and went since start."""
        return self.read("peak") - self.read("current")

    def stayed(self) -> int:
        return self.read("current") - self.before


class Scratch:
    def __init__(self, torch: Any, device: Any, meter: Optional[Meter] = None) -> None:
        self.torch, self.device = torch, device
        self.meter = meter or Meter(torch)
        self.types = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

    def convolution(self, c: Dict[str, Any]) -> Dict[str, int]:
        """Scratch of the forward pass and of the two gradients, each run alone: autograd chooses
        the same kernels.
        """
        aten = self.torch.ops.aten
        order = self.torch.channels_last if c.get("channels_last") else self.torch.contiguous_format
        x, w = self.values(c["x"], c, order), self.values(c["w"], c, order)
        geometry = (c["stride"], c["pad"], c["dilation"], False, [0, 0], c["groups"])
        forward, y = self.passing(lambda: aten.convolution(x, w, None, *geometry))

        def gradient(*mask: bool) -> int:
            return self.passing(
                lambda: aten.convolution_backward(y, x, w, None, *geometry, [*mask, False])
            )[0]

        return {
            "forward": forward,
            "input_grad": gradient(True, False),
            "weight_grad": gradient(False, True),
        }

    def recurrent(self, r: Dict[str, Any]) -> Dict[str, int]:
        """Scratch of the forward pass; the backward pass asks for the same. What stays beyond the
        results is the reserve, and the weights where torch does not keep them in one piece and must
        gather them.
        """
        nn = self.torch.nn
        kind = nn.LSTM if r["kind"] == "lstm" else nn.GRU
        both, dtype = r["directions"] == 2, self.types[r["dtype"]]
        net = (
            kind(
                r["in"],
                r["hidden"],
                r["layers"],
                dropout=0.1 if r.get("dropout") else 0.0,
                bidirectional=both,
            )
            .to(self.device, dtype)
            .train()
        )
        x = self.torch.zeros(r["steps"], r["batch"], r["in"], dtype=dtype, device=self.device)
        state = self.torch.zeros(
            r["layers"] * r["directions"], r["batch"], r["hidden"], dtype=dtype, device=self.device
        )
        states = (state, state.clone()) if r["kind"] == "lstm" else state
        warnings.simplefilter("ignore")
        net(x[:1], states)  # the library's own state for dropout is made once
        self.meter.start()
        out, last = net(x, states)
        results = sum(
            t.numel() * t.element_size() for t in (out, *(last if r["kind"] == "lstm" else (last,)))
        )
        weights = list(net.parameters())
        gathered = (
            0
            if len({w.untyped_storage().data_ptr() for w in weights}) == 1
            else sum(w.numel() * w.element_size() for w in weights)
        )
        return {
            "workspace": self.meter.passing(),
            "reserve": self.meter.stayed() - results - gathered,
        }

    def values(self, shape: Sequence[int], c: Dict[str, Any], order: Any) -> Any:
        return self.torch.empty(
            shape, dtype=self.types[c["dtype"]], device=self.device, memory_format=order
        ).zero_()

    def passing(self, operation: Callable[[], Any]) -> Tuple[int, Any]:
        with self.torch.no_grad():
            self.meter.start()
            result = operation()
            return self.meter.passing(), result
