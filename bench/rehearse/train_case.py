"""An ordinary training script: builds the model of one measured case (docs: shared/groundtruth) and
trains it on random data.

python train_case.py CASE.json        the case is the `case` object of a line of h200-peaks.jsonl

"""

import contextlib
import json
import sys

import torch
from torch import nn

HEADS = {
    "bert": "MaskedLM",
    "roberta": "MaskedLM",
    "distilbert": "MaskedLM",
    "electra": "MaskedLM",
    "albert": "MaskedLM",
    "deberta": "MaskedLM",
    "deberta-v2": "MaskedLM",
    "t5": "Seq2SeqLM",
    "bart": "Seq2SeqLM",
    "whisper": "SpeechSeq2Seq",
    "wav2vec2": "CTC",
}
HEADS.update(
    {
        f: "ImageClassification"
        for f in ("vit", "deit", "swin", "convnext", "resnet", "dinov2", "beit")
    }
)
RECURRENT = ("lstm", "gru", "bilstm")


class Recurrent(nn.Module):
    def __init__(self, family, cfg):
        super().__init__()
        both, layers = family == "bilstm", cfg["layers"]
        kind = nn.GRU if family == "gru" else nn.LSTM
        self.emb = nn.Embedding(cfg["vocab"], cfg["embed"])
        self.rnn = kind(
            cfg["embed"],
            cfg["hidden"],
            layers,
            batch_first=True,
            dropout=0.1 if layers > 1 else 0.0,
            bidirectional=both,
        )
        self.out = nn.Linear(cfg["hidden"] * (2 if both else 1), cfg["vocab"])

    def forward(self, x):
        x, _ = self.rnn(self.emb(x))
        return self.out(x)


class Lora(nn.Module):
    def __init__(self, base, rank):
        super().__init__()
        self.base_layer = base
        self.lora_A = nn.Linear(base.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x):
        y = self.base_layer(x)
        return y + self.lora_B(self.lora_A(x.to(self.lora_A.weight.dtype))) * 2.0


def build(case):
    family, cfg = case["family"], dict(case["config"])
    if family == "torchvision":
        import torchvision

        return getattr(torchvision.models, cfg["name"])(weights=None), None
    if family in RECURRENT:
        return Recurrent(family, cfg), None
    if family == "mlp":
        layers, width = [], cfg["in"]
        for _ in range(cfg["layers"]):
            layers += [nn.Linear(width, cfg["hidden"]), nn.ReLU()]
            width = cfg["hidden"]
        return nn.Sequential(*layers, nn.Linear(width, cfg["out"])), None
    return huggingface(case, family, cfg)


def huggingface(case, family, cfg):
    import transformers

    head = case.get("head") or HEADS.get(family, "CausalLM")
    config = transformers.AutoConfig.for_model(family, **cfg)
    if head == "ImageClassification":
        config.num_labels = 1000
    config.use_cache = case.get("use_cache", False)
    attention = case.get("attn", "sdpa")
    if family == "clip":
        model = transformers.CLIPModel(config)
    elif family == "deit":
        model = transformers.DeiTForImageClassification(config)
    else:
        auto = getattr(transformers, "AutoModelFor" + head)
        try:
            model = auto.from_config(config, attn_implementation=attention)
        except ValueError:
            model = auto.from_config(config, attn_implementation="eager")
    return model.train(), head


def optimizer(name, params):
    kinds = {
        "adamw": lambda p: torch.optim.AdamW(p),
        "adamw_fused": lambda p: torch.optim.AdamW(p, fused=True),
        "adamw_loop": lambda p: torch.optim.AdamW(p, foreach=False),
        "sgd": lambda p: torch.optim.SGD(p, lr=1e-3),
        "sgdm": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9),
        "sgd_wd": lambda p: torch.optim.SGD(
            p, lr=1e-3, momentum=0.9, weight_decay=1e-4, nesterov=True
        ),
        "sgdm_fused": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9, fused=True),
        "adafactor": lambda p: torch.optim.Adafactor(p),
        "rmsprop": lambda p: torch.optim.RMSprop(p),
        "adagrad": lambda p: torch.optim.Adagrad(p),
        "adamax": lambda p: torch.optim.Adamax(p),
        "nadam": lambda p: torch.optim.NAdam(p),
        "radam": lambda p: torch.optim.RAdam(p),
        "adadelta": lambda p: torch.optim.Adadelta(p),
        "adam_amsgrad": lambda p: torch.optim.Adam(p, amsgrad=True),
    }
    return kinds[name](params)


class Data:
    """Random batches on the device, and the loss of a batch."""

    def __init__(self, case, model, head, device):
        self.case, self.model, self.head, self.device = case, model, head, device
        self.dtype = torch.bfloat16 if case.get("precision") == "bf16" else torch.float32
        self.cross_entropy, self.mse = nn.CrossEntropyLoss(), nn.MSELoss()

    def floats(self, *shape):
        return torch.randn(*shape, device=self.device, dtype=self.dtype)

    def ints(self, top, *shape, low=0):
        return torch.randint(low, top, shape, device=self.device)

    def batch(self):
        case, family, b, s = (
            self.case,
            self.case["family"],
            self.case["batch"],
            self.case.get("seq"),
        )
        if family == "torchvision":
            x = self.floats(b, 3, case["image"], case["image"])
            return (
                x.to(memory_format=torch.channels_last) if case.get("channels_last") else x
            ), self.ints(1000, b)
        if family == "mlp":
            return self.floats(b, case["config"]["in"]), self.floats(b, case["config"]["out"])
        if family in RECURRENT:
            return self.ints(case["config"]["vocab"], b, s), None
        config = self.model.config
        if self.head == "ImageClassification":
            side = getattr(config, "image_size", None) or 224
            return dict(pixel_values=self.floats(b, 3, side, side), labels=self.ints(1000, b)), None
        if family == "clip":
            return dict(
                input_ids=self.ints(1000, b, s),
                pixel_values=self.floats(b, 3, 224, 224),
                return_loss=True,
            ), None
        if family == "whisper":
            return dict(
                input_features=self.floats(b, config.num_mel_bins, config.max_source_positions * 2),
                labels=self.ints(1000, b, s),
            ), None
        if family == "wav2vec2":
            return dict(input_values=self.floats(b, s), labels=self.ints(30, b, 20, low=1)), None
        ids = self.ints(config.vocab_size, b, s)
        if self.head == "SequenceClassification":
            return dict(input_ids=ids, labels=self.ints(2, b)), None
        if self.head == "PreTraining":
            return dict(input_ids=ids, labels=self.ints(2, b, s)), None
        x = dict(input_ids=ids, labels=ids)
        if case.get("ones_mask"):
            x["attention_mask"] = torch.ones_like(ids)
        if case.get("pad"):
            mask = torch.ones(b, s, dtype=torch.long, device=self.device)
            mask[1:, s // 2 :] = 0
            x["attention_mask"] = mask
        return x, None

    def loss(self, batch):
        x, y = batch
        if isinstance(x, dict):
            return self.model(**x).loss
        if self.case["family"] == "mlp":
            return self.mse(self.model(x), y)
        if self.case["family"] in RECURRENT:
            out = self.model(x[:, :-1])
            return self.cross_entropy(out.reshape(-1, out.shape[-1]), x[:, 1:].reshape(-1))
        return self.cross_entropy(self.model(x), y)


def prepare(case, device):
    model, head = build(case)
    precision = case.get("precision", "fp32")
    if case.get("lora"):
        for p in model.parameters():
            p.requires_grad_(False)
        for layer in model.model.layers:
            layer.self_attn.q_proj = Lora(layer.self_attn.q_proj, case["lora"])
            layer.self_attn.v_proj = Lora(layer.self_attn.v_proj, case["lora"])
    if precision == "bf16":
        model = model.to(torch.bfloat16)
    model = model.to(device)
    if case.get("channels_last"):
        model = model.to(memory_format=torch.channels_last)
    configure(case, model)
    return model, head


def configure(case, model):
    if case.get("freeze"):
        for name, p in model.named_parameters():
            p.requires_grad_(any(f in name for f in case["freeze"]))
    if case.get("ckpt"):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


def main():
    case = json.load(open(sys.argv[1]))
    device = torch.device(sys.argv[2] if len(sys.argv) > 2 else "cuda")
    torch.manual_seed(0)
    model, head = prepare(case, device)
    params = [p for p in model.parameters() if p.requires_grad]
    opt = optimizer(case.get("optim", "adamw"), params)
    precision, accumulate = case.get("precision", "fp32"), case.get("accum", 1)
    half = {"amp_bf16": torch.bfloat16, "amp_fp16": torch.float16}.get(precision)
    scaler = torch.amp.GradScaler(device.type) if precision == "amp_fp16" else None
    data = Data(case, model, head, device)
    for step in range(case.get("steps", 3)):
        for _ in range(accumulate):
            batch = data.batch()
            with torch.autocast(device.type, dtype=half) if half else contextlib.nullcontext():
                loss = data.loss(batch) / accumulate
            (scaler.scale(loss) if scaler else loss).backward()
            del loss, batch
        if case.get("clip"):
            if scaler:
                scaler.unscale_(opt)
            torch.nn.utils.clip_grad_norm_(params, 1.0)
        if scaler:
            scaler.step(opt)
            scaler.update()
        else:
            opt.step()
        opt.zero_grad(set_to_none=case.get("set_to_none", True))


if __name__ == "__main__":
    main()
