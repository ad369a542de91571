import numpy as np
import pandas as pd
import torch
from sklearn.metrics import cohen_kappa_score
from sklearn.model_selection import StratifiedKFold
from torch.utils.data import DataLoader, Subset
from transformers import AutoModelForSequenceClassification, AutoTokenizer

NAME = "microsoft/deberta-v3-base"
DEVICE = "cuda"


class Essays(torch.utils.data.Dataset):
    def __init__(self, frame, tok):
        enc = tok(
            frame["text"].tolist(),
            truncation=True,
            max_length=512,
            padding="max_length",
            return_tensors="np",
        )
        self.ids = enc["input_ids"].astype(np.int32)
        self.mask = enc["attention_mask"].astype(np.int8)
        self.score = frame["score"].to_numpy()

    def __len__(self):
        return len(self.score)

    def __getitem__(self, i):
        return {
            "input_ids": torch.from_numpy(self.ids[i]).long(),
            "attention_mask": torch.from_numpy(self.mask[i]).long(),
            "labels": torch.tensor(int(self.score[i])),
        }


def fit(model, loader, epochs=3):
    opt = torch.optim.AdamW(model.parameters(), lr=1e-5)
    model.train()
    for _ in range(epochs):
        for batch in loader:
            loss = model(**{k: v.to(DEVICE) for k, v in batch.items()}).loss
            loss.backward()
            opt.step()
            opt.zero_grad(set_to_none=True)


@torch.no_grad()
def predict(model, loader):
    model.eval()
    parts = []
    for batch in loader:
        batch.pop("labels")
        logits = model(**{k: v.to(DEVICE) for k, v in batch.items()}).logits
        parts.append(logits.argmax(-1).cpu().numpy())
    return np.concatenate(parts)


def main():
    frame = pd.read_csv("essays.csv")  # hint: dataset-read-whole
    tok = AutoTokenizer.from_pretrained(NAME)
    data = Essays(frame, tok)
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    results = []
    for k, (tr, va) in enumerate(folds.split(frame, frame["score"])):
        model = AutoModelForSequenceClassification.from_pretrained(NAME, num_labels=6).to(DEVICE)
        fit(model, DataLoader(Subset(data, tr), 8, shuffle=True))
        pred = predict(model, DataLoader(Subset(data, va), 16))
        kappa = cohen_kappa_score(data.score[va], pred, weights="quadratic")
        model.save_pretrained(f"fold_{k}")
        results.append((k, kappa))
        del model
        torch.cuda.empty_cache()
        print(k, kappa)
    print("mean", np.mean([r[1] for r in results]))


if __name__ == "__main__":
    main()
