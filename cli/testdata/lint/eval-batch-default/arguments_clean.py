"""The batch of evaluation is set, nothing is evaluated, or training takes as many."""

from transformers import Seq2SeqTrainingArguments, Trainer, TrainingArguments
from trl import SFTConfig


def same_batch(model, train, valid):
    args = TrainingArguments(
        "out",
        per_device_train_batch_size=2,
        per_device_eval_batch_size=2,
        eval_strategy="epoch",
    )
    Trainer(model=model, args=args, train_dataset=train, eval_dataset=valid).train()


def no_evaluation(folder):
    return SFTConfig(
        folder,
        per_device_train_batch_size=1,
        eval_strategy="no",
    )


class Summaries:
    def __init__(self, folder):
        self.args = Seq2SeqTrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=16,
            evaluation_strategy="steps",
        )
