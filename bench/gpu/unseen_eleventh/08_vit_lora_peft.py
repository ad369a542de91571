"""Fine-grained images: a frozen ViT with LoRA adapters (peft) and a fully trained head."""

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from transformers import ViTConfig, ViTForImageClassification

device = "cuda" if torch.cuda.is_available() else "cpu"
large = device == "cuda"
torch.set_float32_matmul_precision("high")
torch.manual_seed(29)

batch_size = 96 if large else 8
size = 224 if large else 32
classes = 20

config = ViTConfig(
    image_size=size,
    patch_size=16 if large else 8,
    hidden_size=512 if large else 64,
    num_hidden_layers=8 if large else 2,
    num_attention_heads=8,
    intermediate_size=2048 if large else 128,
    num_labels=classes,
)
backbone = ViTForImageClassification(config)
model = get_peft_model(
    backbone,
    LoraConfig(
        r=16,
        lora_alpha=32,
        lora_dropout=0.1,
        target_modules="all-linear",
        modules_to_save=["classifier"],
    ),
).to(device)
trainable = [p for p in model.parameters() if p.requires_grad]
print(
    "trainable", sum(p.numel() for p in trainable), "of", sum(p.numel() for p in model.parameters())
)

g = torch.Generator().manual_seed(1)
prototypes = torch.randn(classes, 3, size // 8, size // 8, generator=g)


def sample(n):
    labels = torch.randint(0, classes, (n,), generator=g)
    base = F.interpolate(prototypes[labels], size=(size, size), mode="bilinear")
    images = base + 0.5 * torch.randn(n, 3, size, size, generator=g)
    flip = torch.rand(n, generator=g) < 0.5
    images[flip] = images[flip].flip(-1)
    return images.to(device), labels.to(device)


optimizer = torch.optim.AdamW(trainable, lr=3e-3, weight_decay=0.0)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=12)
for step in range(12):
    model.train()
    images, labels = sample(batch_size)
    logits = model(pixel_values=images).logits
    loss = F.cross_entropy(logits, labels, label_smoothing=0.05)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(trainable, 1.0)
    optimizer.step()
    schedule.step()
    print(f"step {step} loss {loss.item():.6f}")
    if step % 6 == 5:
        model.eval()
        with torch.inference_mode():
            images, labels = sample(batch_size)
            hit = (model(pixel_values=images).logits.argmax(-1) == labels).float().mean()
        print(f"step {step} accuracy {hit.item():.4f}")
