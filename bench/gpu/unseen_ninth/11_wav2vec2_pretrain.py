"""Self-supervised wav2vec 2.0 pretraining: contrastive task over quantised speech features."""

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from transformers import Wav2Vec2Config, Wav2Vec2ForPreTraining, get_linear_schedule_with_warmup
from transformers.models.wav2vec2.modeling_wav2vec2 import (
    _compute_mask_indices,
    _sample_negative_indices,
)

torch.manual_seed(17)
np.random.seed(17)
device = "cuda" if torch.cuda.is_available() else "cpu"

SAMPLES, BATCH, STEPS = 80000, 14, 10
config = Wav2Vec2Config(
    hidden_size=512,
    num_hidden_layers=8,
    num_attention_heads=8,
    intermediate_size=2048,
    conv_dim=(512,) * 7,
    feat_extract_norm="group",
    num_negatives=50,
    mask_time_prob=0.65,
    mask_time_length=10,
    layerdrop=0.0,
    codevector_dim=256,
    proj_codevector_dim=256,
    diversity_loss_weight=0.1,
)
if device == "cpu":
    SAMPLES, BATCH, STEPS = 8000, 2, 8
    config.update(
        dict(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            conv_dim=(32,) * 7,
            num_negatives=5,
            mask_time_length=2,
            codevector_dim=16,
            proj_codevector_dim=16,
            num_codevectors_per_group=20,
            num_conv_pos_embedding_groups=4,
            num_conv_pos_embeddings=16,
        )
    )


class Chirps(Dataset):
    """Sums of gliding tones with noise, normalised to zero mean and unit variance."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        g = torch.Generator().manual_seed(index)
        t = torch.arange(SAMPLES) / 16000
        wave = 0.1 * torch.randn(SAMPLES, generator=g)
        for _ in range(4):
            f0, glide, phase = torch.rand(3, generator=g).tolist()
            wave += torch.sin(2 * torch.pi * (100 + 900 * f0 + 300 * glide * t) * t + 6.28 * phase)
        return (wave - wave.mean()) / wave.std()


class PretrainingCollator:
    def __init__(self, model):
        self.frames = int(model._get_feat_extract_output_lengths(SAMPLES))
        self.config = model.config

    def __call__(self, waves):
        shape = (len(waves), self.frames)
        mask = _compute_mask_indices(
            shape, self.config.mask_time_prob, self.config.mask_time_length, min_masks=2
        )
        negatives = _sample_negative_indices(shape, self.config.num_negatives, mask)
        return {
            "input_values": torch.stack(waves),
            "mask_time_indices": torch.from_numpy(mask).bool(),
            "sampled_negative_indices": torch.from_numpy(negatives).long(),
        }


def main():
    model = Wav2Vec2ForPreTraining(config).to(device)
    model.train()
    collate = PretrainingCollator(model)
    loader = DataLoader(Chirps(BATCH * STEPS), batch_size=BATCH, collate_fn=collate, drop_last=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, betas=(0.9, 0.98), eps=1e-6)
    scheduler = get_linear_schedule_with_warmup(optimizer, 3, STEPS)
    max_temp, min_temp, decay = 2.0, 0.5, 0.99

    for step, batch in enumerate(loader):
        batch = {k: v.to(device) for k, v in batch.items()}
        masked = batch["mask_time_indices"].sum()
        out = model(**batch)
        loss = out.loss / masked
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        # anneal the Gumbel temperature of the quantiser
        model.set_gumbel_temperature(max(max_temp * decay**step, min_temp))
        contrastive = out.contrastive_loss.item() / masked.item()
        print(f"step {step} loss {loss.item():.6f} contrastive {contrastive:.4f}", flush=True)


if __name__ == "__main__":
    main()
