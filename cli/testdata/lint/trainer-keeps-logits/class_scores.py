"""Logits of a classifier are a few numbers a sample, whatever model stands below it."""

from transformers import AutoModelForCausalLM, Trainer, TrainingArguments


def accuracy(found):
    return {"accuracy": (found.predictions.argmax(-1) == found.label_ids).mean()}


def train(train_set, test_set, ScoringForSequenceClassification, RewardModel):
    args = TrainingArguments("out", eval_strategy="epoch")
    base = AutoModelForCausalLM.from_pretrained("base")
    model = ScoringForSequenceClassification(base, 65)
    Trainer(
        model=model,
        args=args,
        train_dataset=train_set,
        eval_dataset=test_set,
        compute_metrics=accuracy,  # hint: trainer-keeps-logits
    ).train()
    judge = RewardModel(base)
    Trainer(judge, args, compute_metrics=accuracy).train()  # hint: trainer-keeps-logits
    Trainer(base, args, compute_metrics=accuracy).train()  # expect: trainer-keeps-logits
