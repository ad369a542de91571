import torch
from transformers import AutoModel, AutoTokenizer

from docs import passages

tok = AutoTokenizer.from_pretrained("bert-base-uncased")
model = AutoModel.from_pretrained("bert-base-uncased").cuda().eval()


def embed(texts):
    batch = tok(texts, return_tensors="pt", padding=True, truncation=True).to("cuda")
    with torch.inference_mode():
        return model(**batch).last_hidden_state


def chunks(items, n):
    for i in range(0, len(items), n):
        yield items[i : i + n]


vectors = [embed(c).mean(1).cpu() for c in chunks(passages(), 64)]
torch.save(torch.cat([v.flatten(1)[:, :768] for v in vectors]), "vectors.pt")
