"""Compiled training in several styles: each case is a script of its own kind.

    python bench/gpu/compiled.py NAME                      # trains, prints what torch counted
    memroom plan --rehearse -- python bench/gpu/compiled.py NAME
    python bench/gpu/compiled.py --both MEMROOM OUT [NAMES]  # what memroom says, what torch counts
    python bench/gpu/compiled.py --scripts MEMROOM OUT FOLDER  # the same for other people's *.py

Scripts of a folder run as they are, as the main module; what torch counted is printed after them.
"""

import json
import os
import runpy
import subprocess
import sys
import tempfile
import time

STEPS = 6


def transformer(torch, width, layers, heads, vocabulary, length):
    """A decoder written by hand."""
    nn, functional = torch.nn, torch.nn.functional

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            b, t, c = x.shape
            q, k, v = self.qkv(self.first(x)).chunk(3, dim=-1)
            q, k, v = (s.view(b, t, heads, c // heads).transpose(1, 2) for s in (q, k, v))
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
            return x + self.down(functional.gelu(self.up(self.second(x))))

    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
            self.blocks = nn.ModuleList([Block() for _ in range(layers)])
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

        def forward(self, ids, targets=None):
            x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
            for block in self.blocks:
                x = block(x)
            logits = self.head(self.norm(x))
            if targets is None:
                return logits
            return functional.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))

    return Decoder()


def words(torch, vocabulary, *shape):
    return torch.randint(0, vocabulary, shape).to("cuda")


def half(torch):
    return torch.autocast("cuda", torch.bfloat16)


# -- the cases
# ------------------------------------------------------------


def own_gpt_autocast(torch):
    model = transformer(torch, 768, 8, 12, 32000, 1024).cuda()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    compiled = torch.compile(model)
    for _ in range(STEPS):
        ids = words(torch, 32000, 12, 1024)
        with half(torch):
            loss = compiled(ids, ids)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)


def t5_bf16(torch):
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(d_model=768, d_ff=2048, num_layers=6, num_decoder_layers=6, num_heads=12)
    model = T5ForConditionalGeneration(config).to(torch.bfloat16).cuda()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model = torch.compile(model)
    for _ in range(STEPS):
        model(
            input_ids=words(torch, 32000, 16, 384), labels=words(torch, 32000, 16, 96)
        ).loss.backward()
        opt.step()
        opt.zero_grad()


def roberta_masked_autocast(torch):
    from transformers import RobertaConfig, RobertaForMaskedLM

    config = RobertaConfig(
        num_hidden_layers=8, vocab_size=50265, max_position_embeddings=514, type_vocab_size=1
    )
    model = RobertaForMaskedLM(config).cuda()
    opt = torch.optim.AdamW(model.parameters(), lr=5e-5)
    model.compile()
    for _ in range(STEPS):
        ids = words(torch, 50000, 24, 320)
        with half(torch):
            loss = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids).loss
        loss.backward()
        opt.step()
        opt.zero_grad()


def llama_regional(torch):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=10,
        num_attention_heads=16,
        num_key_value_heads=4,
        vocab_size=32000,
        use_cache=False,
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16).cuda()
    for layer in model.model.layers:
        layer.compile()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(STEPS):
        ids = words(torch, 32000, 6, 1536)
        model(input_ids=ids, labels=ids).loss.backward()
        opt.step()
        opt.zero_grad()


def conv_channels_last(torch):
    nn = torch.nn

    class Residual(nn.Module):
        def __init__(self, inner, outer, stride):
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(inner, outer, 3, stride, 1, bias=False),
                nn.BatchNorm2d(outer),
                nn.ReLU(),
                nn.Conv2d(outer, outer, 3, 1, 1, bias=False),
                nn.BatchNorm2d(outer),
            )
            self.skip = nn.Conv2d(inner, outer, 1, stride, bias=False)

        def forward(self, x):
            return torch.relu(self.body(x) + self.skip(x))

    sizes = [64, 64, 128, 128, 256, 256, 512, 512]
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    for before, after in zip([64, *sizes], sizes):
        layers.append(Residual(before, after, 1 if before == after else 2))
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))
    model = torch.compile(model.cuda().to(memory_format=torch.channels_last))
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    for _ in range(STEPS):
        images = torch.randn(96, 3, 192, 192).cuda().to(memory_format=torch.channels_last)
        with half(torch):
            loss = nn.functional.cross_entropy(model(images), words(torch, 1000, 96))
        loss.backward()
        opt.step()
        opt.zero_grad()


def compiled_loss(torch):
    from transformers import Qwen2Config, Qwen2ForCausalLM

    @torch.compile
    def shifted(logits, labels):
        logits = logits[:, :-1].float()
        picked = logits.gather(2, labels[:, 1:, None]).squeeze(2)
        return (logits.logsumexp(2) - picked).mean()

    config = Qwen2Config(
        hidden_size=896,
        intermediate_size=2432,
        num_hidden_layers=6,
        num_attention_heads=14,
        num_key_value_heads=2,
        vocab_size=76000,
        use_cache=False,
    )
    model = Qwen2ForCausalLM(config).to(torch.bfloat16).cuda()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(STEPS):
        ids = words(torch, 70000, 4, 1024)
        shifted(model(input_ids=ids).logits, ids).backward()
        opt.step()
        opt.zero_grad()


def dynamic_lengths(torch):
    model = transformer(torch, 640, 6, 10, 20000, 1024).cuda()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    compiled = torch.compile(model, dynamic=True)
    for length in (700, 512, 1000, 640, 820, 960, 404, 1000):
        ids = words(torch, 20000, 8, length)
        with half(torch):
            loss = compiled(ids, ids)
        loss.backward()
        opt.step()
        opt.zero_grad()


def lengths_found_out(torch):
    """Nobody says that lengths vary: the second one makes the compiler compile again."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=6, n_embd=768, n_head=12, use_cache=False)
    model = GPT2LMHeadModel(config).to(torch.bfloat16).cuda()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    compiled = torch.compile(model)
    for length in (512, 384, 640, 480, 768, 256, 768):
        ids = words(torch, 50000, 8, length)
        compiled(input_ids=ids, labels=ids).loss.backward()
        opt.step()
        opt.zero_grad()


def reduce_overhead(torch):
    model = transformer(torch, 512, 6, 8, 16000, 512).cuda()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    compiled = torch.compile(model, mode="reduce-overhead")
    for _ in range(STEPS):
        ids = words(torch, 16000, 16, 512)
        with half(torch):
            loss = compiled(ids, ids)
        loss.backward()
        opt.step()
        opt.zero_grad(set_to_none=True)


def lora_by_hand(torch):
    from transformers import LlamaConfig, LlamaForCausalLM

    class Adapted(torch.nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base = base
            self.a = torch.nn.Linear(base.in_features, 16, bias=False)
            self.b = torch.nn.Linear(16, base.out_features, bias=False)

        def forward(self, x):
            return self.base(x) + self.b(self.a(x)) * 2

    config = LlamaConfig(
        hidden_size=1536,
        intermediate_size=4096,
        num_hidden_layers=6,
        num_attention_heads=12,
        num_key_value_heads=12,
        vocab_size=32000,
        use_cache=False,
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.requires_grad_(False)
    for layer in model.model.layers:
        for name in ("q_proj", "v_proj", "o_proj"):
            setattr(layer.self_attn, name, Adapted(getattr(layer.self_attn, name)))
    model = model.to(torch.bfloat16).cuda()
    trained = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(trained, lr=2e-4)
    model = torch.compile(model)
    for _ in range(STEPS):
        ids = words(torch, 32000, 8, 768)
        model(input_ids=ids, labels=ids).loss.backward()
        opt.step()
        opt.zero_grad()


def accumulate_and_clip(torch):
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        hidden_size=768,
        intermediate_size=2304,
        num_hidden_layers=6,
        num_attention_heads=12,
        num_key_value_heads=4,
        head_dim=64,
        vocab_size=60000,
        use_cache=False,
    )
    model = Qwen3ForCausalLM(config).cuda()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model = torch.compile(model)
    for _ in range(STEPS):
        for _ in range(3):
            ids = words(torch, 60000, 4, 1024)
            with half(torch):
                loss = model(input_ids=ids, labels=ids).loss / 3
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad()


def distilbert_whole_graph(torch):
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    model = DistilBertForSequenceClassification(DistilBertConfig(num_labels=5)).cuda()
    opt = torch.optim.AdamW(model.parameters(), lr=5e-5)
    model = torch.compile(model, fullgraph=True)
    for _ in range(STEPS):
        ids = words(torch, 30000, 32, 192)
        out = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=words(torch, 5, 32))
        out.loss.backward()
        opt.step()
        opt.zero_grad()


def swin_autocast(torch):
    from transformers import SwinConfig, SwinForImageClassification

    config = SwinConfig(depths=[2, 2, 4, 2], drop_path_rate=0.0, num_labels=100)
    model = SwinForImageClassification(config).cuda()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model = torch.compile(model)
    for _ in range(STEPS):
        with half(torch):
            out = model(
                pixel_values=torch.randn(48, 3, 224, 224).cuda(), labels=words(torch, 100, 48)
            )
        out.loss.backward()
        opt.step()
        opt.zero_grad()


def train_and_validate(torch):
    model = transformer(torch, 768, 6, 12, 24000, 768).to(torch.bfloat16).cuda()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    compiled = torch.compile(model)
    for step in range(STEPS):
        model.train()
        ids = words(torch, 24000, 8, 768)
        compiled(ids, ids).backward()
        opt.step()
        opt.zero_grad()
        if step % 2:
            model.eval()
            with torch.no_grad():
                ids = words(torch, 24000, 24, 768)
                compiled(ids, ids).item()


def mlp_mixer_fp32(torch):
    nn = torch.nn

    class Mix(nn.Module):
        def __init__(self, places, width):
            super().__init__()
            self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
            self.across = nn.Sequential(nn.Linear(places, 256), nn.GELU(), nn.Linear(256, places))
            self.along = nn.Sequential(
                nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * width, width)
            )

        def forward(self, x):
            x = x + self.across(self.first(x).transpose(1, 2)).transpose(1, 2)
            return x + self.along(self.second(x))

    class Mixer(nn.Module):
        def __init__(self):
            super().__init__()
            self.cut = nn.Conv2d(3, 512, 16, 16)
            self.layers = nn.Sequential(*[Mix(196, 512) for _ in range(8)])
            self.head = nn.Linear(512, 1000)

        def forward(self, images):
            x = self.cut(images).flatten(2).transpose(1, 2)
            return self.head(self.layers(x).mean(1))

    model = torch.compile(Mixer().cuda())
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        images = torch.randn(128, 3, 224, 224).cuda()
        loss = nn.functional.cross_entropy(model(images), words(torch, 1000, 128))
        opt.zero_grad()
        loss.backward()
        opt.step()


def checkpointed_blocks(torch):
    from torch.utils.checkpoint import checkpoint

    model = transformer(torch, 1024, 8, 16, 32000, 1024).to(torch.bfloat16).cuda()

    class Whole(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, ids):
            m = self.model
            x = m.words(ids) + m.places(torch.arange(ids.shape[1], device=ids.device))
            for block in m.blocks:
                x = checkpoint(block, x, use_reentrant=False)
            logits = m.head(m.norm(x))
            return torch.nn.functional.cross_entropy(
                logits.view(-1, logits.shape[-1]), ids.view(-1)
            )

    whole = torch.compile(Whole())
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(STEPS):
        whole(words(torch, 32000, 8, 1024)).backward()
        opt.step()
        opt.zero_grad()


def hf_trainer(torch):
    """Hugging Face's Trainer with torch_compile."""
    from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

    class Pictures(torch.utils.data.Dataset):
        def __len__(self):
            return 32 * STEPS

        def __getitem__(self, i):
            return {"pixel_values": torch.randn(3, 224, 224), "labels": i % 10}

    model = ViTForImageClassification(ViTConfig(num_hidden_layers=8, num_labels=10))
    settings = TrainingArguments(
        tempfile.mkdtemp(),
        per_device_train_batch_size=32,
        bf16=True,
        torch_compile=True,
        max_steps=STEPS,
        report_to=[],
        save_strategy="no",
        dataloader_num_workers=0,
    )
    Trainer(model, settings, train_dataset=Pictures()).train()


def lightning_language(torch):
    import lightning

    class Language(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = torch.compile(transformer(torch, 640, 6, 10, 24000, 512))

        def training_step(self, batch, _):
            return self.net(batch, batch)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-4)

    data = torch.utils.data.DataLoader(torch.randint(0, 24000, (16 * STEPS, 512)), batch_size=16)
    trainer = lightning.Trainer(
        accelerator="gpu",
        devices=1,
        precision="bf16-mixed",
        max_steps=STEPS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Language(), data)


def unet_fp16_scaler(torch):
    nn = torch.nn

    class Twice(nn.Module):
        def __init__(self, inner, outer):
            super().__init__()
            self.first, self.second = (
                nn.Conv2d(inner, outer, 3, 1, 1),
                nn.Conv2d(outer, outer, 3, 1, 1),
            )
            self.norm = nn.GroupNorm(8, outer)
            self.skip = nn.Conv2d(inner, outer, 1)

        def forward(self, x):
            h = nn.functional.silu(self.norm(self.first(x)))
            return self.second(h) + self.skip(x)

    class UNet(nn.Module):
        def __init__(self, widths=(48, 96, 192)):
            super().__init__()
            self.start = nn.Conv2d(3, widths[0], 3, 1, 1)
            self.down = nn.ModuleList([Twice(a, b) for a, b in zip((widths[0], *widths), widths)])
            self.middle = Twice(widths[-1], widths[-1])
            back = widths[::-1]
            self.up = nn.ModuleList([Twice(a + b, b) for a, b in zip((back[0], *back), back)])
            self.end = nn.Conv2d(widths[0], 3, 1)

        def forward(self, x):
            x, kept = self.start(x), []
            for block in self.down:
                x = block(x)
                kept.append(x)
                x = nn.functional.avg_pool2d(x, 2)
            x = self.middle(x)
            for block in self.up:
                x = nn.functional.interpolate(x, scale_factor=2)
                x = block(torch.cat([x, kept.pop()], 1))
            return self.end(x)

    model = UNet().cuda()
    net = torch.compile(model)
    opt = torch.optim.Adam(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler()
    for _ in range(STEPS):
        clean = torch.randn(16, 3, 128, 128).cuda()
        noise = torch.randn_like(clean)
        with torch.autocast("cuda", torch.float16):
            loss = nn.functional.mse_loss(net(clean + noise), noise)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()


def autoencoder_fp32(torch):
    nn = torch.nn

    class Variational(nn.Module):
        def __init__(self):
            super().__init__()
            self.read = nn.Sequential(
                nn.Conv2d(3, 64, 4, 2, 1),
                nn.ReLU(),
                nn.Conv2d(64, 128, 4, 2, 1),
                nn.ReLU(),
                nn.Conv2d(128, 256, 4, 2, 1),
                nn.ReLU(),
                nn.Flatten(),
            )
            self.mean, self.spread = nn.Linear(256 * 64, 128), nn.Linear(256 * 64, 128)
            self.grow = nn.Linear(128, 256 * 64)
            self.write = nn.Sequential(
                nn.ConvTranspose2d(256, 128, 4, 2, 1),
                nn.ReLU(),
                nn.ConvTranspose2d(128, 64, 4, 2, 1),
                nn.ReLU(),
                nn.ConvTranspose2d(64, 3, 4, 2, 1),
                nn.Sigmoid(),
            )

        def forward(self, x):
            h = self.read(x)
            mean, spread = self.mean(h), self.spread(h)
            z = mean + torch.randn_like(mean) * (0.5 * spread).exp()
            y = self.write(self.grow(z).view(-1, 256, 8, 8))
            far = -0.5 * (1 + spread - mean.pow(2) - spread.exp()).sum(1).mean()
            return nn.functional.mse_loss(y, x) + 1e-3 * far

    model = Variational().cuda()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    net = torch.compile(model)
    for _ in range(STEPS):
        loss = net(torch.rand(256, 3, 64, 64).cuda())
        opt.zero_grad()
        loss.backward()
        opt.step()


def compiled_optimizer(torch):
    model = transformer(torch, 768, 5, 12, 16000, 512).cuda()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    net = torch.compile(model)

    @torch.compile(fullgraph=False)
    def step():
        opt.step()

    for _ in range(STEPS):
        ids = words(torch, 16000, 12, 512)
        with half(torch):
            loss = net(ids, ids)
        loss.backward()
        step()
        opt.zero_grad()


def gemma2_softcap(torch):
    from transformers import Gemma2Config, Gemma2ForCausalLM

    config = Gemma2Config(
        hidden_size=768,
        intermediate_size=3072,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=96,
        vocab_size=48000,
        sliding_window=256,
        use_cache=False,
        attn_implementation="eager",
    )
    model = Gemma2ForCausalLM(config).to(torch.bfloat16).cuda()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    net = torch.compile(model)
    for _ in range(STEPS):
        ids = words(torch, 48000, 6, 768)
        net(input_ids=ids, labels=ids).loss.backward()
        opt.step()
        opt.zero_grad()


def llama_checkpointed(torch):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=1280,
        intermediate_size=3456,
        num_hidden_layers=8,
        num_attention_heads=20,
        num_key_value_heads=5,
        vocab_size=32000,
        use_cache=False,
    )
    model = LlamaForCausalLM(config).cuda()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    net = torch.compile(model)
    for _ in range(STEPS):
        ids = words(torch, 32000, 6, 1280)
        with half(torch):
            loss = net(input_ids=ids, labels=ids).loss
        loss.backward()
        opt.step()
        opt.zero_grad()


def mixture_by_hand(torch):
    nn = torch.nn

    class Mixture(nn.Module):
        def __init__(self, width, experts):
            super().__init__()
            self.gate = nn.Linear(width, experts)
            self.up = nn.Parameter(torch.randn(experts, width, 2 * width) * 0.02)
            self.down = nn.Parameter(torch.randn(experts, 2 * width, width) * 0.02)

        def forward(self, x):
            share = self.gate(x).softmax(-1)
            h = torch.einsum("btc,ecf->btef", x, self.up)
            y = torch.einsum("btef,efc->btec", nn.functional.gelu(h), self.down)
            return x + (y * share.unsqueeze(-1)).sum(2)

    class Language(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(12000, 384)
            self.layers = nn.ModuleList([Mixture(384, 6) for _ in range(4)])
            self.head = nn.Linear(384, 12000)

        def forward(self, ids):
            x = self.words(ids)
            for layer in self.layers:
                x = layer(x)
            return nn.functional.cross_entropy(self.head(x).flatten(0, 1), ids.flatten())

    model = Language().to(torch.bfloat16).cuda()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    net = torch.compile(model)
    for _ in range(STEPS):
        net(words(torch, 12000, 16, 512)).backward()
        opt.step()
        opt.zero_grad()


def accelerate_inductor(torch):
    from accelerate import Accelerator
    from transformers import BertConfig, BertForSequenceClassification

    accelerator = Accelerator(mixed_precision="bf16", dynamo_backend="inductor")
    model = BertForSequenceClassification(BertConfig(num_hidden_layers=8))
    opt = torch.optim.AdamW(model.parameters(), lr=5e-5)
    data = torch.utils.data.TensorDataset(
        torch.randint(0, 30000, (32 * STEPS, 256)), torch.randint(0, 2, (32 * STEPS,))
    )
    loader = torch.utils.data.DataLoader(data, batch_size=32)
    model, opt, loader = accelerator.prepare(model, opt, loader)
    for ids, labels in loader:
        accelerator.backward(model(input_ids=ids, labels=labels).loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad()


def two_towers(torch):
    from transformers import CLIPConfig, CLIPModel

    model = CLIPModel(CLIPConfig()).to(torch.bfloat16).cuda()
    model.vision_model.compile()
    model.text_model.compile()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-5)
    for _ in range(STEPS):
        out = model(
            input_ids=words(torch, 40000, 48, 77),
            pixel_values=torch.randn(48, 3, 224, 224).to("cuda", torch.bfloat16),
            return_loss=True,
        )
        out.loss.backward()
        opt.step()
        opt.zero_grad()


def t5_with_start(torch):
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        d_model=512, d_ff=1536, num_layers=5, num_heads=8, decoder_start_token_id=0, use_cache=False
    )
    model = T5ForConditionalGeneration(config).to(torch.bfloat16).cuda()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    net = torch.compile(model)
    for _ in range(STEPS):
        net(
            input_ids=words(torch, 32000, 24, 256), labels=words(torch, 32000, 24, 128)
        ).loss.backward()
        opt.step()
        opt.zero_grad()


def last_batch_is_smaller(torch):
    """An epoch whose last batch is cut: the compiler sees another shape."""
    from transformers import RobertaConfig, RobertaForTokenClassification

    config = RobertaConfig(num_hidden_layers=6, max_position_embeddings=514, num_labels=9)
    model = RobertaForTokenClassification(config).cuda()
    opt = torch.optim.AdamW(model.parameters(), lr=5e-5)
    net = torch.compile(model)
    data = torch.utils.data.DataLoader(torch.randint(5, 50000, (100, 256)), batch_size=32)
    for _ in range(2):
        for ids in data:
            ids = ids.cuda()
            with half(torch):
                loss = net(input_ids=ids, labels=ids % 9).loss
            loss.backward()
            opt.step()
            opt.zero_grad()


def whisper_bf16(torch):
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        d_model=384,
        encoder_layers=4,
        decoder_layers=4,
        encoder_attention_heads=6,
        decoder_attention_heads=6,
        encoder_ffn_dim=1536,
        decoder_ffn_dim=1536,
        use_cache=False,
    )
    model = WhisperForConditionalGeneration(config).to(torch.bfloat16).cuda()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    net = torch.compile(model)
    for _ in range(STEPS):
        sound = torch.randn(8, 80, 3000).to("cuda", torch.bfloat16)
        net(input_features=sound, labels=words(torch, 50000, 8, 128)).loss.backward()
        opt.step()
        opt.zero_grad()


def recurrent_tagger(torch):
    """cuDNN's LSTM, around which the graph breaks."""
    nn = torch.nn

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(20000, 256)
            self.turn = nn.LSTM(256, 512, 2, batch_first=True, bidirectional=True)
            self.head = nn.Sequential(nn.Linear(1024, 512), nn.GELU(), nn.Linear(512, 4000))

        def forward(self, ids):
            h, _ = self.turn(self.words(ids))
            return nn.functional.cross_entropy(self.head(h).flatten(0, 1), (ids % 4000).flatten())

    model = Tagger().cuda()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    net = torch.compile(model)
    for _ in range(STEPS):
        loss = net(words(torch, 20000, 64, 200))
        opt.zero_grad()
        loss.backward()
        opt.step()


CASES = {
    f.__name__: f
    for f in (
        own_gpt_autocast,
        t5_bf16,
        roberta_masked_autocast,
        llama_regional,
        conv_channels_last,
        compiled_loss,
        dynamic_lengths,
        lengths_found_out,
        reduce_overhead,
        lora_by_hand,
        accumulate_and_clip,
        distilbert_whole_graph,
        swin_autocast,
        train_and_validate,
        mlp_mixer_fp32,
        checkpointed_blocks,
        hf_trainer,
        lightning_language,
        unet_fp16_scaler,
        autoencoder_fp32,
        compiled_optimizer,
        gemma2_softcap,
        llama_checkpointed,
        mixture_by_hand,
        accelerate_inductor,
        two_towers,
        t5_with_start,
        last_batch_is_smaller,
        whisper_bf16,
        recurrent_tagger,
    )
}


def one(name):
    import torch

    torch.manual_seed(1)
    CASES[name](torch)
    torch.cuda.synchronize()
    counted(name, torch)


def counted(name, torch):
    """Prints the peaks that torch counted."""
    row = {
        "name": name,
        "allocated": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
        "torch": torch.__version__,
    }
    print("COUNTED " + json.dumps(row), flush=True)


# -- memroom's answer and torch's, side by side
# ------------------------------------------------------------


def both(memroom, out, cases, at_once=8, each=240):
    """Writes OUT: one line a case and side. What is there is not asked again. A case is a name and
    the command that trains it, which prints COUNTED and what torch counted.
    """
    done = set()
    if os.path.exists(out):
        with open(out) as file:
            done = {(r["side"], r["name"]) for r in map(json.loads, file)}
    waiting = [
        (side, name) for side in ("memroom", "torch") for name in cases if (side, name) not in done
    ]
    running = []
    while waiting or running:
        while waiting and len(running) < at_once:
            side, name = waiting.pop(0)
            command = cases[name]
            if side == "memroom":
                rehearse = ["plan", "--rehearse", "--json", "--gpu", "H200", "--"]
                command = [memroom, *rehearse, *command]
            # both sides of a case may run at the same time
            files = [open("%s.%s.%s.%s" % (out, name, side, k), "w+") for k in ("said", "told")]
            process = subprocess.Popen(command, stdout=files[0], stderr=files[1])
            running.append((side, name, process, files, time.monotonic()))
        time.sleep(0.2)
        for entry in list(running):
            side, name, process, files, since = entry
            if process.poll() is None:
                if time.monotonic() - since > each:
                    process.kill()
                continue
            running.remove(entry)
            row = {"side": side, "name": name, "seconds": round(time.monotonic() - since, 1)}
            row.update(understood(side, files))
            with open(out, "a") as file:
                file.write(json.dumps(row) + "\n")
            print(side, name, row.get("reserved"), row.get("error", ""), flush=True)


def understood(side, files):
    texts = []
    for file in files:
        file.seek(0)
        texts.append(file.read())
        file.close()
        os.remove(file.name)
    try:
        if side == "torch":
            line = [s for s in texts[0].split("\n") if s.startswith("COUNTED ")][-1]
            return json.loads(line[8:])
        said = json.loads(texts[0])
        kept = ("allocated_peak", "reserved_peak", "device_peak", "low", "high", "warnings")
        row = {k: said.get(k) for k in kept}
        return row | {"allocated": row["allocated_peak"], "reserved": row["reserved_peak"]}
    except (ValueError, IndexError):
        return {"error": texts[1][-1500:]}


def foreign(path):
    """Runs somebody else's script and prints what torch counted when it is over."""
    sys.argv = [path]
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as e:
        if e.code:
            raise
    import torch

    torch.cuda.synchronize()
    counted(os.path.basename(path)[:-3], torch)


def scripts(memroom, out, folder):
    me = os.path.abspath(__file__)
    names = sorted(f for f in os.listdir(folder) if f.endswith(".py"))
    commands = {n[:-3]: [sys.executable, me, "--foreign", os.path.join(folder, n)] for n in names}
    both(memroom, out, commands, int(os.environ.get("AT_ONCE", "8")))


def main():
    if sys.argv[1] == "--both":
        commands = {n: [sys.executable, os.path.abspath(__file__), n] for n in CASES}
        chosen = sys.argv[4].split(",") if len(sys.argv) > 4 else list(commands)
        at_once = int(os.environ.get("AT_ONCE", "8"))
        both(sys.argv[2], sys.argv[3], {n: commands[n] for n in chosen}, at_once)
    elif sys.argv[1] == "--scripts":
        scripts(*sys.argv[2:5])
    elif sys.argv[1] == "--foreign":
        foreign(sys.argv[2])
    elif sys.argv[1] == "--list":
        print("\n".join(CASES))
    else:
        one(sys.argv[1])


if __name__ == "__main__":
    main()
