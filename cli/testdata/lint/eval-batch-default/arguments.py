"""Evaluation with the default batch beside a small training batch."""

from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer, TrainingArguments
from trl import SFTConfig, SFTTrainer


def classify(model, train, valid):
    args = TrainingArguments(  # expect: eval-batch-default
        "out", per_device_train_batch_size=2, eval_strategy="epoch", learning_rate=2e-5
    )
    Trainer(model=model, args=args, train_dataset=train, eval_dataset=valid).train()


class Summaries:
    def __init__(self, folder, epochs):
        self.args = Seq2SeqTrainingArguments(  # expect: eval-batch-default
            output_dir=folder,
            num_train_epochs=epochs,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=8,
            evaluation_strategy="steps",
            eval_steps=500,
        )

    def train(self, model, train, valid):
        Seq2SeqTrainer(model, self.args, train_dataset=train, eval_dataset=valid).train()


def config(folder):
    return SFTConfig(  # expect: eval-batch-default
        folder, per_device_train_batch_size=1, do_eval=True, gradient_checkpointing=True
    )


def tune(model, folder, train, valid):
    SFTTrainer(model, args=config(folder), train_dataset=train, eval_dataset=valid).train()
