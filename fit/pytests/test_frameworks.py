"""The same under the libraries that own the loop: transformers' Trainer, Lightning,
DistributedDataParallel with two ranks.
"""

import os
import tempfile
import unittest

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
import torch.nn as nn
import torch.nn.functional as F
from training import PIECES, furthest, remedies, sow


def gpt2(**changes):
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    settings = dict(
        n_layer=2,
        n_head=2,
        n_embd=32,
        vocab_size=50,
        n_positions=16,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(GPT2Config(**dict(settings, **changes)))


def sentence(i):
    generator = torch.Generator().manual_seed(i)
    x = torch.randint(0, 50, (12,), generator=generator)
    y = x.clone()
    y[: i % 9] = -100
    return {"input_ids": x, "labels": y, "attention_mask": torch.ones(12, dtype=torch.int64)}


class Transformers(unittest.TestCase):
    def losses(self, asked, **changes):
        from transformers import Trainer, TrainingArguments

        with tempfile.TemporaryDirectory() as folder, remedies(
            *asked, of=["Trainer", repr(changes)]
        ) as told:
            arguments = TrainingArguments(
                output_dir=folder,
                per_device_train_batch_size=8,
                max_steps=6,
                logging_steps=1,
                report_to=[],
                save_strategy="no",
                use_cpu=True,
                seed=3,
                learning_rate=1e-3,
                disable_tqdm=True,
                **changes,
            )
            trainer = Trainer(gpt2(), arguments, train_dataset=[sentence(i) for i in range(60)])
            trainer.train()
            return [
                (e["loss"], e["grad_norm"], e["learning_rate"])
                for e in trainer.state.log_history
                if "loss" in e
            ], told

    def test_trainer(self):
        for changes in ({}, {"gradient_accumulation_steps": 2}, {"label_smoothing_factor": 0.1}):
            with self.subTest(**changes):
                whole, _ = self.losses((), **changes)
                pieces, told = self.losses(PIECES, **changes)
                self.assertEqual(len(whole), len(pieces))
                self.assertNotIn("declined", told.text())
                for column in range(3):
                    self.assertLess(
                        furthest([w[column] for w in whole], [p[column] for p in pieces]), 1e-4
                    )

    def test_model_families(self):
        """Models that return their loss in their own ways, with ignored labels."""
        from transformers import (
            BertConfig,
            BertForSequenceClassification,
            T5Config,
            T5ForConditionalGeneration,
        )

        tiny = dict(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            vocab_size=50,
        )
        bert = BertForSequenceClassification(
            BertConfig(**tiny, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        )
        t5 = T5ForConditionalGeneration(
            T5Config(
                d_model=32,
                d_kv=16,
                d_ff=64,
                num_layers=2,
                num_heads=2,
                vocab_size=50,
                dropout_rate=0.0,
                decoder_start_token_id=0,
            )
        )
        x, mask = torch.randint(1, 50, (10, 8)), torch.ones(10, 8, dtype=torch.int64)
        mask[3:, 5:] = 0
        y = torch.randint(1, 50, (10, 6))
        y[4:, 3:] = -100
        front = x.clone()
        front[:, 2:] = -100  # labels at the beginning only: marking more of them must leave some
        for model, labels in (
            (bert, torch.randint(0, 2, (10,))),
            (t5, y),
            (gpt2(), x.masked_fill(mask == 0, -100)),
            (gpt2(), front),
        ):
            with self.subTest(type(model).__name__):
                model.train()
                results = []
                for asked in ((), PIECES):
                    model.zero_grad()
                    with remedies(*asked, of="no step") as told:
                        loss = model(input_ids=x, attention_mask=mask, labels=labels).loss
                        loss.backward()
                    results.append(
                        (
                            loss.item(),
                            [p.grad.clone() for p in model.parameters() if p.grad is not None],
                        )
                    )
                self.assertEqual({kind for kind, _, _ in told}, {"applied"}, told)
                self.assertLess(furthest([results[0][0]], [results[1][0]]), 1e-6)
                for a, b in zip(results[0][1], results[1][1]):
                    self.assertLess(float((a - b).abs().max()), 1e-5)


class Lightning(unittest.TestCase):
    def test_trainer(self):
        import lightning

        class Lit(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                torch.manual_seed(0)
                self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
                self.seen = []

            def training_step(self, batch, index):
                loss = F.cross_entropy(self.net(batch[0]), batch[1])
                self.seen.append((index, loss.item()))
                return loss

            def configure_optimizers(self):
                return torch.optim.AdamW(self.parameters(), 1e-2)

        torch.manual_seed(1)
        data = torch.utils.data.TensorDataset(torch.randn(52, 8), torch.randint(0, 3, (52,)))
        seen = []
        for asked in ((), PIECES):
            lit = Lit()
            with remedies(*asked, of=[data]) as told, tempfile.TemporaryDirectory() as folder:
                trainer = lightning.Trainer(
                    max_epochs=2,
                    accelerator="cpu",
                    logger=False,
                    enable_checkpointing=False,
                    enable_progress_bar=False,
                    enable_model_summary=False,
                    default_root_dir=folder,
                )
                trainer.fit(lit, torch.utils.data.DataLoader(data, batch_size=16))
            seen.append(lit.seen)
        self.assertEqual(
            [i for i, _ in seen[0]], [i for i, _ in seen[1]]
        )  # training_step ran once per batch
        self.assertLess(furthest([v for _, v in seen[0]], [v for _, v in seen[1]]), 1e-5)
        self.assertEqual({kind for kind, _, _ in told}, {"applied"}, told)


def rank(index, port, asked, results):
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=index, world_size=2)
    from test_microbatch import TinyGPT, mlp, points, sentences

    losses = []
    with remedies(*asked, of="a process of its own: see below") as told:
        for model, step, batches in (
            (mlp(), lambda m, b: F.cross_entropy(m(b[0]), b[1]), points((16, 12, 16, 16))),
            (TinyGPT(), lambda m, b: m(*b)[1], sentences()),
        ):
            sow(7)
            for p in model.parameters():
                nn.init.normal_(p, 0, 0.2)
            ddp = DistributedDataParallel(model)
            optimizer = torch.optim.AdamW(ddp.parameters(), 1e-2)
            for i, batch in enumerate(batches):
                optimizer.zero_grad()
                loss = step(
                    ddp, tuple(t.roll(index * (i + 1), 0)[index:] for t in batch)
                )  # ranks see different rows
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            losses += [float(p.double().norm()) for p in model.parameters()]
    results[index] = (losses, told.text(), told.states)
    dist.destroy_process_group()


class Distributed(unittest.TestCase):
    def run_ranks(self, asked):
        import multiprocessing
        import socket

        import torch.multiprocessing as mp

        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        with mp.Manager() as manager:
            results = manager.dict()
            # One process imports torch for all ranks; each is forked from it before any step.
            multiprocessing.set_forkserver_preload(["torch", "torch._dynamo", "torch.distributed"])
            mp.start_processes(rank, (port, asked, results), nprocs=2, start_method="forkserver")
            return dict(results)

    def test_two_gloo_ranks(self):
        whole, pieces = self.run_ranks(()), self.run_ranks(PIECES)
        for index in range(2):
            self.assertNotIn("declined", pieces[index][1])
            self.assertLess(furthest(whole[index][0], pieces[index][0]), 1e-5)
            self.assertEqual(whole[index][2], pieces[index][2])
        self.assertNotEqual(whole[0][0][0], whole[1][0][0])
        self.assertEqual(
            pieces[0][0][4:8], pieces[1][0][4:8]
        )  # weights stay the same on both ranks


if __name__ == "__main__":
    unittest.main()
