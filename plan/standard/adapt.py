"""Adapters and packed weights for any model: LoRA and DoRA as PEFT applies them, 4 and 8 bit linear
layers as bitsandbytes holds them. Only sizes and lifetimes are those of the real ones: on fake
tensors there are no numbers.
"""

from __future__ import annotations

from typing import Any

from .models import Unbuildable

HEADS = ("lm_head", "embed_out", "score", "classifier", "qa_outputs", "decoder", "proj_out")
USUAL = (
    *("q_proj", "v_proj", "c_attn", "query", "value", "query_key_value", "qkv_proj", "q_lin"),
    *("v_lin", "q", "v", "qkv", "in_proj", "Wqkv", "to_q", "to_v"),
)
ALL = "all-linear"


def apply(model: Any, spec: dict[str, Any], torch: Any) -> None:
    """Changes the model on the host, before it is moved to the card."""
    if not spec["lora_rank"]:
        return
    for p in model.parameters():
        p.requires_grad_(False)
    chosen = targets(model, spec["lora_targets"], torch)
    if not chosen:
        raise Unbuildable(
            "no layer for LoRA: there is no linear layer named %s; use --lora-targets all-linear, "
            "or names among %s"
            % (
                ", ".join(spec["lora_targets"] or USUAL),
                ", ".join(sorted({n.split(".")[-1] for n, _ in linears(model, torch)})),
            )
        )
    adapted = {id(m) for _, m in chosen}
    saved = save_whole(model, spec["modules_to_save"], torch)
    kinds = classes(torch)
    for name, layer in list(linears(model, torch)):
        if any(name == s or name.startswith(s + ".") for s in saved):
            continue
        new = layer
        if spec["load_in"] and name.split(".")[-1] not in HEADS:
            new = kinds["packed"](layer, spec)
        if id(layer) in adapted:
            new = kinds["adapted"](new, layer, spec)
        if new is not layer:
            put(model, name, new)
    if spec["load_in"] and not spec["no_upcast"]:
        for p in model.parameters():
            if p.dtype in (torch.float16, torch.bfloat16):
                p.data = p.data.float()


def linears(model: Any, torch: Any) -> Any:
    for name, module in model.named_modules():
        if type(module) is torch.nn.Linear or type(module).__name__ == "Conv1D":
            yield name, module


def targets(model: Any, names: list[str], torch: Any) -> list[tuple[str, Any]]:
    found = []
    for name, module in linears(model, torch):
        last = name.split(".")[-1]
        if names == [ALL]:
            if last not in HEADS:
                found.append((name, module))
        elif any(last == n or name.endswith("." + n) for n in (names or USUAL)):
            found.append((name, module))
    return found


def put(model: Any, name: str, new: Any) -> None:
    owner, _, last = name.rpartition(".")
    setattr(model.get_submodule(owner) if owner else model, last, new)


def save_whole(model: Any, names: list[str], torch: Any) -> list[str]:
    """Trains the named modules, with a frozen copy beside each; returns their paths."""
    found = []
    for path, module in list(model.named_modules()):
        if path.split(".")[-1] in names:
            found.append(path)
            for name, p in list(module.named_parameters(recurse=False)):
                p.requires_grad_(True)
                module.register_buffer("original_" + name, torch.empty_like(p.data))
    if names and not found:
        raise Unbuildable("--modules-to-save: no module is named %s" % " or ".join(names))
    return found


def sizes(layer: Any) -> tuple[int, int]:
    """What a linear layer reads and writes."""
    if type(layer).__name__ == "Conv1D":
        return layer.weight.shape[0], layer.weight.shape[1]
    return layer.in_features, layer.out_features


def classes(torch: Any) -> dict[str, Any]:
    """The layers; made here because torch is imported late."""
    nn, linear = torch.nn, torch.nn.functional.linear

    class Product4(torch.autograd.Function):
        """x times a weight that is unpacked for it, and again for the gradient."""

        @staticmethod
        def forward(ctx: Any, x: Any, rows: int, columns: int, scales: int) -> Any:
            ctx.sizes = (rows, columns, scales)
            return linear(x, unpacked(x, rows, columns, scales))

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad.matmul(unpacked(grad, *ctx.sizes)), None, None, None

    def unpacked(like: Any, rows: int, columns: int, scales: int) -> Any:
        if scales:  # they are packed too, and unpacked first
            torch.empty(scales, dtype=torch.float32, device=like.device)
        return torch.empty(rows, columns, dtype=like.dtype, device=like.device)

    class Product8(torch.autograd.Function):
        """The product in 8 bits: the input is saved."""

        @staticmethod
        def forward(ctx: Any, x: Any, rows: int, columns: int) -> Any:
            ctx.x, ctx.sizes = x, (rows, columns)
            flat = x.reshape(-1, columns)
            small = flat.to(torch.float16).to(torch.int8)
            sums = torch.empty(flat.shape[0], rows, dtype=torch.int32, device=x.device)
            out = sums.to(torch.float16)
            del sums, small
            return out.to(x.dtype).reshape(*x.shape[:-1], rows)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            rows, columns = ctx.sizes
            return grad.matmul(unpacked(grad, rows, columns, 0)), None, None

    class Packed(nn.Module):
        def __init__(self, layer: Any, spec: dict[str, Any]) -> None:
            super().__init__()
            self.columns, self.rows = sizes(layer)
            self.in_features, self.out_features = self.columns, self.rows
            self.bits, n = spec["load_in"], self.columns * self.rows
            self.half = torch.float16 if spec["precision"].endswith("fp16") else torch.bfloat16
            four, blocks = self.bits == "4bit", (n + 63) // 64
            self.weight = nn.Parameter(
                torch.empty((n + 1) // 2 if four else n, dtype=torch.uint8), requires_grad=False
            )
            self.bias = layer.bias
            self.scales = 0
            if not four:
                self.register_buffer("scale", torch.empty(self.rows, dtype=torch.float32))
            elif spec["double_quant"]:
                self.scales = blocks
                self.register_buffer("scale", torch.empty(blocks, dtype=torch.uint8))
                self.register_buffer("scale2", torch.empty((blocks + 255) // 256))
                self.register_buffer("table2", torch.empty(256))
            else:
                self.register_buffer("scale", torch.empty(blocks, dtype=torch.float32))
            if four:
                self.register_buffer("table", torch.empty(16))

        def forward(self, x: Any) -> Any:
            given = x.dtype
            if self.bits == "4bit":
                half = x if x.dtype in (torch.float16, torch.bfloat16) else x.to(self.half)
                out = Product4.apply(half, self.rows, self.columns, self.scales)
            else:
                out = Product8.apply(x, self.rows, self.columns)
            if self.bias is not None:
                out = out + self.bias.to(out.dtype)
            return out.to(given)

    class Adapted(nn.Module):
        """base(x) + B(A(x)), and with DoRA the length of the weight's rows trained apart."""

        def __init__(self, base: Any, layer: Any, spec: dict[str, Any]) -> None:
            super().__init__()
            self.columns, self.rows = sizes(layer)
            self.base_layer, rank = base, spec["lora_rank"]
            self.lora_A = nn.Linear(self.columns, rank, bias=False, dtype=torch.float32)
            self.lora_B = nn.Linear(rank, self.rows, bias=False, dtype=torch.float32)
            self.drop = nn.Dropout(spec["lora_dropout"]) if spec["lora_dropout"] else None
            self.copies = spec["load_in"] == "4bit"
            self.packed = bool(spec["load_in"])
            if spec["dora"]:
                self.magnitude = nn.Parameter(torch.ones(self.rows))

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError:  # models ask for the weight's type and the layer's sizes
                return getattr(super().__getattr__("base_layer"), name)

        def forward(self, x: Any) -> Any:
            y = self.base_layer(x)
            if self.copies:
                y = y.clone()
            if not (self.packed and torch.is_autocast_enabled("cuda")):
                x = x.to(torch.float32)
            if self.drop is not None:
                x = self.drop(x)
            if "magnitude" in self._parameters:
                return (y + self.turned(x, y)).to(y.dtype)
            low = self.lora_B(self.lora_A(x)) * 2.0
            if self.packed:
                return y + low.to(y.dtype)
            return (y + low).to(y.dtype)

        def turned(self, x: Any, y: Any) -> Any:
            eye = torch.eye(self.columns, device=x.device, dtype=x.dtype)
            low = self.lora_B(self.lora_A(eye)).T
            wide = torch.empty(self.rows, self.columns, device=x.device, dtype=x.dtype)
            norm = torch.linalg.norm(wide + 2.0 * low.detach(), dim=1)
            scale = (self.magnitude / norm).view(1, -1)
            result = self.lora_B(self.lora_A(x))
            straight = y if self.drop is None else linear(x, wide)
            return (scale - 1) * straight + scale * result * 2.0

    return {"packed": Packed, "adapted": Adapted}
