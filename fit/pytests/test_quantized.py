"""8 and 4 bit loading through transformers' from_pretrained, with the real library."""

import tempfile
import unittest

import torch
from training import remedies
from transformers import AutoModelForCausalLM, OPTConfig, OPTForCausalLM


def saved_model(folder):
    torch.manual_seed(0)
    shape = dict(
        hidden_size=128,
        num_hidden_layers=2,
        ffn_dim=256,
        num_attention_heads=2,
        vocab_size=200,
        word_embed_proj_dim=128,
        max_position_embeddings=64,
    )
    OPTForCausalLM(OPTConfig(**shape)).save_pretrained(folder)
    return folder


class Quantized(unittest.TestCase):
    def test_both(self):
        ids = torch.randint(0, 200, (2, 16), generator=torch.Generator().manual_seed(0))
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            whole = AutoModelForCausalLM.from_pretrained(saved_model(folder))
            base = next(
                kind for kind in OPTForCausalLM.__mro__ if kind.__name__ == "PreTrainedModel"
            )
            kept = base.from_pretrained.__func__
            for id, share in (("quantize_8bit", 0.4), ("quantize_4bit", 0.3)):
                with self.subTest(id), remedies((id, {}), of="no step") as told:
                    small = AutoModelForCausalLM.from_pretrained(folder)
                    self.assertIn("applied", told.kinds(id))
                    self.assertLess(
                        small.get_memory_footprint(), share * whole.get_memory_footprint()
                    )
                    a, b = (float(m(input_ids=ids, labels=ids).loss) for m in (whole, small))
                    self.assertLess(abs(a - b) / a, 0.01)
                    self.assertNotEqual(a, b)
                base.from_pretrained = classmethod(kept)


if __name__ == "__main__":
    unittest.main()
