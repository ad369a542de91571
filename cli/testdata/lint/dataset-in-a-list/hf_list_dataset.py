from datasets import load_dataset
from torch.utils.data import DataLoader

ds = load_dataset("imagenet-1k", split="train")
rows = list(ds)  # expect: dataset-in-a-list
loader = DataLoader(rows, batch_size=8, num_workers=8)
