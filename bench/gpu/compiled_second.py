"""A second list of compiled trainings, used as compiled.py is:

    python bench/gpu/compiled_second.py --both MEMROOM OUT [NAMES]
    python bench/gpu/compiled_second.py --scripts MEMROOM OUT FOLDER   # other people's *.py

Written on 2026-11-16 before any of it ran, on a card or in a rehearsal. The scripts of a folder are
run as they are, as the main module, and what torch counted is printed after them.
"""

import os
import runpy
import sys
import tempfile

import compiled
from compiled import STEPS, half, transformer, words


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
    compiled.counted(os.path.basename(path)[:-3], torch)


def scripts(memroom, out, folder):
    me = os.path.abspath(__file__)
    names = sorted(f for f in os.listdir(folder) if f.endswith(".py"))
    commands = {n[:-3]: [sys.executable, me, "--foreign", os.path.join(folder, n)] for n in names}
    compiled.both(memroom, out, commands, int(os.environ.get("AT_ONCE", "8")))


if __name__ == "__main__":
    if sys.argv[1] == "--scripts":
        scripts(*sys.argv[2:5])
    elif sys.argv[1] == "--foreign":
        foreign(sys.argv[2])
    else:
        compiled.main(__file__, CASES)
