"""Text in one process, and a filter that keeps rows as they are."""

from datasets import load_dataset
from transformers import AutoTokenizer


def tokenized(files, name):
    tokenizer = AutoTokenizer.from_pretrained(name)
    rows = load_dataset("json", data_files=files, split="train")
    return rows.map(lambda r: tokenizer(r["text"], truncation=True), batched=True)


class Corpus:
    def __init__(self, files):
        self.rows = load_dataset("parquet", data_files=files, split="train", streaming=True)

    def long(self, least):
        return self.rows.filter(lambda r: len(r["text"]) >= least)
