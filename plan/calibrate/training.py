"""A little training that loads what training loads: the context, then kernels and cuBLAS, then
cuDNN.
"""

from typing import Any, Callable, Dict, Iterator

from scratch import Meter


def stages(torch: Any) -> Iterator[Dict[str, Any]]:
    """Yields a line for each stage when it is reached; the caller reads the driver before it asks
    for the next.
    """
    tiny = torch.zeros(1, device="cuda")
    p = torch.cuda.get_device_properties(tiny.device)
    yield reached(
        torch,
        "context",
        {
            "name": p.name,
            "uuid": str(getattr(p, "uuid", "")),
            "total": p.total_memory,
            "sms": p.multi_processor_count,
            "capability": p.major * 10 + p.minor,
            "torch": torch.__version__,
            "cudnn": torch.backends.cudnn.version() or 0,
        },
    )
    libraries = products(torch)
    model = transformer(torch).cuda()
    steps(torch, model, ids, entropy)
    yield reached(torch, "kernels", libraries)
    if torch.cuda.is_bf16_supported():
        steps(torch, model, ids, entropy, torch.bfloat16)
    steps(torch, images(torch).cuda(), pixels, spread)
    steps(
        torch,
        torch.nn.LSTM(64, 64, 2, dropout=0.1).cuda(),
        tokens,
        lambda torch, out: spread(torch, out[0]),
    )
    yield reached(torch, "cudnn", {})


def reached(torch: Any, stage: str, facts: Dict[str, Any]) -> Dict[str, Any]:
    torch.cuda.synchronize()
    return dict(facts, stage=stage, reserved=torch.cuda.memory_reserved())


def products(torch: Any) -> Dict[str, int]:
    """Bytes that the first matrix product leaves in the allocator for cuBLAS, and the first one
    with a bias for cuBLASLt.
    """
    a, bias = torch.zeros(64, 64, device="cuda"), torch.zeros(64, device="cuda")
    into = torch.zeros(64, 64, device="cuda")
    meter = Meter(torch)
    meter.start()
    torch.mm(a, a, out=into)
    blas = meter.stayed()
    meter.start()
    result = torch.nn.functional.linear(a, a, bias)
    return {"blas": blas, "blaslt": meter.stayed() - result.numel() * result.element_size()}


def steps(
    torch: Any,
    model: Any,
    batch: Callable[[Any], Any],
    loss: Callable[[Any, Any], Any],
    precision: Any = None,
) -> None:
    """Three optimizer steps, which load every kernel that training of this kind uses."""
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        with torch.autocast(
            "cuda", dtype=precision or torch.bfloat16, enabled=precision is not None
        ):
            value = loss(torch, model(batch(torch)))
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def ids(torch: Any) -> Any:
    return torch.randint(0, 1000, (4, 128), device="cuda")


def pixels(torch: Any) -> Any:
    return torch.randn(4, 3, 64, 64, device="cuda")


def tokens(torch: Any) -> Any:
    return torch.randn(8, 4, 64, device="cuda")


def entropy(torch: Any, out: Any) -> Any:
    return torch.nn.functional.cross_entropy(
        out.flatten(0, 1).float(),
        torch.zeros(out.shape[0] * out.shape[1], dtype=torch.long, device=out.device),
    )


def spread(torch: Any, out: Any) -> Any:
    return out.square().mean()


def images(torch: Any) -> Any:
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 32, 3, 2),
        nn.AdaptiveAvgPool2d(1),
    )


def transformer(torch: Any) -> Any:
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.qkv, self.out = (
                nn.LayerNorm(256),
                nn.Linear(256, 768),
                nn.Linear(256, 256),
            )
            self.mlp = nn.Sequential(
                nn.LayerNorm(256),
                nn.Linear(256, 1024),
                nn.GELU(),
                nn.Linear(1024, 256),
                nn.Dropout(0.1),
            )

        def forward(self, x: Any) -> Any:
            q, k, v = (
                self.qkv(self.norm(x)).view(x.shape[0], x.shape[1], 3, 4, 64).permute(2, 0, 3, 1, 4)
            )
            a = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(a.transpose(1, 2).flatten(2))
            return x + self.mlp(x)

    return nn.Sequential(nn.Embedding(1000, 256), Block(), Block(), nn.Linear(256, 1000))
