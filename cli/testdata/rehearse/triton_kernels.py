"""A loss with hand-written Triton kernels: plain, with heuristics, and one that is timed first. Its
backward pass adds products of bf16 up in fp32.
"""

import torch
import triton
import triton.language as tl


@triton.jit
def scale(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


even = triton.heuristics({"BLOCK": lambda args: 256 if args["n"] > 1024 else 64})(scale)
timed = triton.autotune(
    [triton.Config({"BLOCK": 128}), triton.Config({"BLOCK": 1024})], key=["n"]
)(scale)


class Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        y = (x @ weight.t()).float()
        out = torch.empty_like(y)
        scale[(triton.cdiv(y.numel(), 128),)](y, out, y.numel(), BLOCK=128)
        even[lambda meta: (triton.cdiv(y.numel(), meta["BLOCK"]),)](y, out, y.numel())
        timed[lambda meta: (triton.cdiv(y.numel(), meta["BLOCK"]),)](y, out, y.numel())
        return out.mean()

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        total = torch.zeros(weight.shape, device=x.device)
        half = torch.ones(len(x), len(weight), device=x.device, dtype=x.dtype).t()
        torch.addmm(total, half, x, out_dtype=torch.float32, out=total)
        more = torch.addmm(total, half, x, out_dtype=torch.float32)
        plain = torch.mm(half, x, out_dtype=torch.float32)
        each = torch.bmm(half[None], x[None], out_dtype=torch.float32)
        for t in (total, more, plain, each[0]):
            assert t.shape == weight.shape and t.dtype == torch.float32, (t.shape, t.dtype)
        return None, total.to(weight.dtype)


layer = torch.nn.Linear(512, 2048, bias=False, device="cuda", dtype=torch.bfloat16)
optimizer = torch.optim.AdamW(layer.parameters())
for _ in range(3):
    x = torch.randn(256, 512, device="cuda", dtype=torch.bfloat16)
    Loss.apply(x, layer.weight).backward()
    optimizer.step()
    optimizer.zero_grad()
