"""Reading lines of text from images: a ViT encoder, a TrOCR decoder, Hugging Face Trainer."""

import tempfile

import torch
from transformers import (
    Trainer,
    TrainerCallback,
    TrainingArguments,
    TrOCRConfig,
    VisionEncoderDecoderConfig,
    VisionEncoderDecoderModel,
    ViTConfig,
    set_seed,
)

device = "cuda" if torch.cuda.is_available() else "cpu"
large = device == "cuda"
torch.backends.cuda.matmul.allow_tf32 = True

batch_size = 64 if large else 4
height, width, patch = (64, 512, 8) if large else (16, 64, 8)
dim = 384 if large else 48
letters = 40
PAD, START, END = 0, 1, 2


class Lines(torch.utils.data.Dataset):
    def __init__(self, n):
        g = torch.Generator().manual_seed(3)
        self.glyphs = torch.rand(letters, height // 2, width // 32, generator=g)
        self.texts = torch.randint(0, letters, (n, 32), generator=g)
        self.lengths = torch.randint(12, 31, (n,), generator=g)
        self.shifts = torch.randint(0, height // 2, (n,), generator=g)

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, i):
        n = int(self.lengths[i])
        text = self.texts[i, :n]
        line = torch.cat(list(self.glyphs[text]), dim=1)
        image = torch.zeros(3, height, width)
        top = int(self.shifts[i])
        image[:, top : top + height // 2, : line.shape[1]] = line
        labels = torch.full((32,), -100)
        labels[:n] = text + 3
        labels[n] = END
        return {"pixel_values": image * 2 - 1, "labels": labels}


class Report(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            print(f"step {state.global_step} loss {logs['loss']:.6f}", flush=True)


set_seed(21)
encoder = ViTConfig(
    hidden_size=dim,
    num_hidden_layers=8 if large else 2,
    num_attention_heads=6,
    intermediate_size=4 * dim,
    image_size=(height, width),
    patch_size=patch,
)
decoder = TrOCRConfig(
    vocab_size=letters + 3,
    d_model=dim,
    decoder_layers=4 if large else 2,
    decoder_attention_heads=6,
    decoder_ffn_dim=4 * dim,
    max_position_embeddings=64,
    cross_attention_hidden_size=dim,
    pad_token_id=PAD,
    bos_token_id=START,
    eos_token_id=END,
    decoder_start_token_id=START,
    is_decoder=True,
    add_cross_attention=True,
    use_cache=False,
)
config = VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
config.decoder_start_token_id = START
config.pad_token_id = PAD
model = VisionEncoderDecoderModel(config=config)

with tempfile.TemporaryDirectory() as folder:
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=batch_size,
            gradient_accumulation_steps=2,
            max_steps=9,
            learning_rate=3e-4,
            lr_scheduler_type="cosine",
            max_grad_norm=1.0,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            remove_unused_columns=False,
        ),
        train_dataset=Lines(batch_size * 18),
        callbacks=[Report()],
    )
    trainer.model_accepts_loss_kwargs = False  # this model averages over its own labels
    trainer.train()
