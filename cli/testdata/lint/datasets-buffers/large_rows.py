"""Rows of sound, pictures and vectors that datasets gathers in many processes."""

import os

from datasets import Array2D, Features, Value, load_dataset
from transformers import AutoFeatureExtractor

extractor = AutoFeatureExtractor.from_pretrained("openai/whisper-small")


def prepare(row):
    row["input_features"] = extractor(row["audio"]["array"]).input_features[0]
    return row


def seen(rows):
    return {"pixel_values": [extractor(p) for p in rows["picture"]]}


def from_folder(folder, processes):
    return load_dataset("json", data_dir=folder, num_proc=processes, writer_batch_size=20)  # expect: datasets-buffers


def spectra(files):
    shape = Features({"name": Value("string"), "power": Array2D((80, 3000), "float32")})
    return load_dataset("json", data_files=files, features=shape, num_proc=24)  # expect: datasets-buffers


speech = load_dataset("parquet", data_files="speech/*.parquet", split="train")
speech = speech.map(prepare, num_proc=16, writer_batch_size=1000)  # expect: datasets-buffers
pictures = load_dataset("imagefolder", data_dir="pictures", split="train")
pictures = pictures.map(seen, batched=True, num_proc=os.cpu_count())  # expect: datasets-buffers
vectors = pictures.map(lambda r: {"embedding": extractor(r)}, num_proc=12)  # expect: datasets-buffers
together = pictures.map(seen, batched=True, batch_size=-1)  # expect: datasets-buffers
