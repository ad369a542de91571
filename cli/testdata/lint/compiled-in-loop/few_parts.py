"""A chain of functions, folds, predictions that are generated: few rounds, no logits."""

import jax
import optax
import torch
from nets import build, splits_of
from transformers import Seq2SeqTrainer


def chain(update_fns):
    def update(updates, state, params=None):
        kept = []
        for s, fn in zip(state, update_fns):
            updates, s = fn(updates, s, params)
            kept.append(updates)
        return kept

    return optax.GradientTransformation(None, update)


def folds(data, trainer):
    for fold, (train, valid) in enumerate(splits_of(data)):
        model = torch.compile(build())  # hint: compiled-in-loop
        trainer.fit(model, train, valid)


def transcribe(model, args, train, valid, metrics):
    return Seq2SeqTrainer(
        model=model,
        args=args,
        train_dataset=train,
        eval_dataset=valid,
        compute_metrics=metrics if args.predict_with_generate else None,
    )


grads = jax.grad(lambda w: (w**2).sum())
