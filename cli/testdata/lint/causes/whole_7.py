from datasets import load_dataset
from transformers import AutoTokenizer, Trainer

tok = AutoTokenizer.from_pretrained("gpt2")
ds = load_dataset("text", data_files="c.txt", split="train")
ids = [tok(t)["input_ids"] for t in ds["text"]]  # expect: dataset-read-whole
Trainer(model=m, train_dataset=ids).train()
