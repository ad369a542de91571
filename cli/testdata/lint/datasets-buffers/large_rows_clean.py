"""Rows of text in many processes, large rows that are written early, one file for one process."""

import os

from datasets import load_dataset
from transformers import AutoFeatureExtractor, AutoTokenizer

extractor = AutoFeatureExtractor.from_pretrained("openai/whisper-small")
tokenizer = AutoTokenizer.from_pretrained("gpt2")


def prepare(row):
    row["input_features"] = extractor(row["audio"]["array"]).input_features[0]
    return row


def words(rows):
    return {"input_ids": tokenizer(rows["text"])["input_ids"], "length": len(rows["text"])}


def from_folder(folder, processes):
    return load_dataset("json", data_dir=folder, num_proc=processes)  # hint: datasets-buffers


def from_file():
    return load_dataset("json", data_files="a.jsonl", num_proc=8, writer_batch_size=20)  # hint: datasets-buffers


def by_columns(folder, processes):
    return load_dataset("parquet", data_dir=folder, num_proc=processes, writer_batch_size=20)


speech = load_dataset("parquet", data_files="speech/*.parquet", split="train")
few = speech.map(prepare, num_proc=4)
early = speech.map(prepare, num_proc=32, writer_batch_size=50)
text = load_dataset("json", data_files={"train": "a.jsonl", "test": "b.jsonl"})
text = text.map(words, batched=True, num_proc=os.cpu_count())
text = text.map(words, batched=True, num_proc=16, writer_batch_size=1000)
