"""
LLaVA-style vision-language model: ViT patches -> MLP projector -> causal LM.
Stage 1 trains the projector only, stage 2 the projector + LM. The vision tower stays frozen.
"""

import contextlib
import functools
import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from transformers import CLIPVisionConfig, CLIPVisionModel, MistralConfig, MistralForCausalLM

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
IMAGE_TOKEN, PAD, IGNORE = 3, 0, -100

if CUDA:
    IMG, PATCH, VDIM, VLAYERS = 224, 14, 768, 10
    DIM, LAYERS, HEADS, VOCAB, TEXT = 1024, 10, 16, 32000, 320
    BATCH, STAGE_STEPS = 10, (3, 6)
else:
    IMG, PATCH, VDIM, VLAYERS = 28, 14, 32, 2
    DIM, LAYERS, HEADS, VOCAB, TEXT = 32, 2, 2, 64, 12
    BATCH, STAGE_STEPS = 2, (1, 2)
N_PATCH = (IMG // PATCH) ** 2


class VisualInstruct(Dataset):
    def __init__(self, n, seed):
        self.n, self.seed = n, seed

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed + i)
        topic = int(torch.randint(4, VOCAB - TEXT, (1,), generator=g))
        image = torch.randn(3, IMG, IMG, generator=g) * 0.5 + (topic / VOCAB - 0.5) * 2
        q = torch.randint(
            4, VOCAB, (int(torch.randint(3, TEXT // 3, (1,), generator=g)),), generator=g
        )
        a = topic + torch.arange(int(torch.randint(TEXT // 3, TEXT // 2, (1,), generator=g)))
        ids = torch.cat([torch.tensor([1, IMAGE_TOKEN]), q, a, torch.tensor([2])])
        labels = ids.clone()
        labels[: 2 + len(q)] = IGNORE
        return image, ids, labels


def collate(batch):
    images, ids, labels = zip(*batch)
    ids = nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=PAD)
    labels = nn.utils.rnn.pad_sequence(labels, batch_first=True, padding_value=IGNORE)
    return torch.stack(images), ids, labels


class Llava(nn.Module):
    def __init__(self):
        super().__init__()
        self.vision = CLIPVisionModel(
            CLIPVisionConfig(
                hidden_size=VDIM,
                intermediate_size=4 * VDIM,
                num_hidden_layers=VLAYERS,
                num_attention_heads=max(2, VDIM // 64),
                image_size=IMG,
                patch_size=PATCH,
            )
        )
        self.projector = nn.Sequential(nn.Linear(VDIM, DIM), nn.GELU(), nn.Linear(DIM, DIM))
        self.lm = MistralForCausalLM(
            MistralConfig(
                vocab_size=VOCAB,
                hidden_size=DIM,
                intermediate_size=int(3.5 * DIM),
                num_hidden_layers=LAYERS,
                num_attention_heads=HEADS,
                num_key_value_heads=HEADS // 2,
                max_position_embeddings=2048,
                sliding_window=None,
                use_cache=False,
            )
        )
        self.vision.requires_grad_(False)

    def forward(self, images, ids, labels):
        with torch.no_grad():
            feats = self.vision(pixel_values=images, output_hidden_states=True).hidden_states[-2][
                :, 1:
            ]
        visual = self.projector(feats)
        text = self.lm.get_input_embeddings()(ids)
        # the <image> token sits at position 1 of every sample: splice the patches in
        embeds = torch.cat([text[:, :1], visual.to(text.dtype), text[:, 2:]], 1)
        filler = labels.new_full((labels.size(0), N_PATCH), IGNORE)
        labels = torch.cat([labels[:, :1], filler, labels[:, 2:]], 1)
        ones = torch.ones_like(filler)
        keep = (ids != PAD).long()
        mask = torch.cat([keep[:, :1], ones, keep[:, 2:]], 1)
        logits = self.lm(inputs_embeds=embeds, attention_mask=mask).logits
        return F.cross_entropy(
            logits[:, :-1].float().reshape(-1, VOCAB),
            labels[:, 1:].reshape(-1),
            ignore_index=IGNORE,
        )


def run_stage(name, model, steps, lr, train_lm, seed):
    model.lm.requires_grad_(train_lm)
    groups = [{"params": list(model.projector.parameters()), "lr": lr}]
    if train_lm:
        groups.append({"params": list(model.lm.parameters()), "lr": lr / 5})
    opt = torch.optim.AdamW(groups, betas=(0.9, 0.999), weight_decay=0.0)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=steps)
    loader = DataLoader(
        VisualInstruct(BATCH * steps, seed),
        BATCH,
        collate_fn=collate,
        num_workers=2 if CUDA else 0,
        pin_memory=CUDA,
    )
    amp = (
        functools.partial(torch.autocast, "cuda", torch.bfloat16)
        if CUDA
        else contextlib.nullcontext
    )
    for step, batch in enumerate(loader):
        images, ids, labels = (t.to(DEVICE, non_blocking=True) for t in batch)
        with amp():
            loss = model(images, ids, labels)
        loss.backward()
        nn.utils.clip_grad_norm_([p for g in groups for p in g["params"]], 1.0)
        opt.step()
        sched.step()
        opt.zero_grad(set_to_none=True)
        print(
            f"[{name}] step {step} loss {loss.item():.8f} lr {sched.get_last_lr()[0]:.2e}",
            flush=True,
        )


def main():
    torch.manual_seed(31)
    model = Llava().to(DEVICE)
    model.vision.eval()
    with tempfile.TemporaryDirectory() as d:
        run_stage("align", model, STAGE_STEPS[0], 1e-3, train_lm=False, seed=10_000)
        torch.save(model.projector.state_dict(), os.path.join(d, "mm_projector.bin"))
        run_stage("instruct", model, STAGE_STEPS[1], 2e-4, train_lm=True, seed=20_000)


if __name__ == "__main__":
    main()
