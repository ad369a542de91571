"""Trains a little, stops at each stage, prints one JSON line and waits for a line on standard input.

Stages: "context" (one tiny tensor), "kernels" (fp32 training of linear layers and attention: cuBLAS and plain kernels),
"cudnn" (half-precision attention, convolution and an LSTM on top). The caller subtracts what the allocator reserved from
what the driver says is used. Memory for the allocator is small and left alone between stages.
"""
import json
import sys


def stage(reached, more):
    """Says which stage is reached and holds still until told to go on."""
    import torch

    torch.cuda.synchronize()
    print(json.dumps(dict(more, stage=reached, reserved=torch.cuda.memory_reserved())), flush=True)
    if not sys.stdin.readline():
        sys.exit(0)


def steps(torch, model, make, loss, precision=None):
    """Three optimizer steps, which load every kernel that training of this kind uses."""
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        with torch.autocast("cuda", dtype=precision or torch.bfloat16, enabled=precision is not None):
            value = loss(model(make()))
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def transformer(torch):
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.qkv, self.out = nn.LayerNorm(256), nn.Linear(256, 768), nn.Linear(256, 256)
            self.mlp = nn.Sequential(nn.LayerNorm(256), nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256), nn.Dropout(0.1))

        def forward(self, x):
            q, k, v = self.qkv(self.norm(x)).view(x.shape[0], x.shape[1], 3, 4, 64).permute(2, 0, 3, 1, 4)
            a = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(a.transpose(1, 2).flatten(2))
            return x + self.mlp(x)

    return nn.Sequential(nn.Embedding(1000, 256), Block(), Block(), nn.Linear(256, 1000)).cuda()


def main():
    try:
        import torch
    except Exception as problem:
        print(json.dumps({"error": "import torch: %s" % problem}))
        return
    if not torch.cuda.is_available():
        print(json.dumps({"error": "torch sees no CUDA device (see `memroom doctor`)"}))
        return
    tiny = torch.zeros(1, device="cuda")
    p = torch.cuda.get_device_properties(0)
    stage("context", {"name": p.name, "uuid": str(getattr(p, "uuid", "")), "total": p.total_memory, "sms": p.multi_processor_count,
                      "capability": p.major * 10 + p.minor, "torch": torch.__version__})
    model = transformer(torch)
    ids = lambda: torch.randint(0, 1000, (4, 128), device="cuda")  # noqa: E731
    entropy = lambda out: torch.nn.functional.cross_entropy(out.flatten(0, 1).float(), out.new_zeros(out.shape[0] * out.shape[1], dtype=torch.long))  # noqa: E731
    steps(torch, model, ids, entropy)
    stage("kernels", {})
    if torch.cuda.is_bf16_supported():
        steps(torch, model, ids, entropy, torch.bfloat16)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.BatchNorm2d(32), torch.nn.ReLU(), torch.nn.Conv2d(32, 32, 3, 2)).cuda()
    steps(torch, net, lambda: torch.randn(4, 3, 64, 64, device="cuda"), lambda out: out.square().mean())
    stage("cudnn", {})
    del tiny


main()
