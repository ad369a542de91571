"""Three steps of one of TRL's own trainers on a small model.

python trl_steps.py dpo|kto|orpo|sft [lora] [before] CONFIG

Texts are words of a made-up vocabulary, so that every length is known: a quarter of the tokens is
the prompt. `before` computes the reference's probabilities ahead of training.
"""

import json
import sys
import tempfile

import transformers
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers

METHOD, *OPTIONS, CONFIG = sys.argv[1:]
BATCH, SEQ = 4, 384
PROMPT = SEQ // 4
ANSWER = SEQ - PROMPT - 1  # the mark of its end comes on top

vocabulary = {"w%d" % i: i for i in range(100)}
vocabulary.update({"<pad>": 100, "<end>": 101})
words = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = transformers.PreTrainedTokenizerFast(
    tokenizer_object=words, pad_token="<pad>", eos_token="<end>"
)
with open(CONFIG) as file:
    config = transformers.LlamaConfig(
        **{**json.load(file), "pad_token_id": 100, "eos_token_id": 101}
    )


def model():
    return transformers.LlamaForCausalLM(config)


def text(count, first):
    return " ".join("w%d" % ((first + 7 * i) % 100) for i in range(count))


def row(i):
    if METHOD == "sft":
        return {"text": text(SEQ - 1 - 8 * (i % 2), i)}
    asked = {"prompt": text(PROMPT, i) + " "}
    if METHOD == "kto":
        answer = text(ANSWER - 8 * (i // 2 % 2), i)
        return {**asked, "completion": answer, "label": i % 2 == 0}
    return {**asked, "chosen": text(ANSWER, i), "rejected": text(ANSWER - 8, i)}


def classes():
    if METHOD == "orpo":
        from trl.experimental.orpo import ORPOConfig, ORPOTrainer

        return ORPOConfig, ORPOTrainer
    import trl

    return getattr(trl, METHOD.upper() + "Config"), getattr(trl, METHOD.upper() + "Trainer")


settings, trainer = classes()
more = {}
if "lora" in OPTIONS:
    from peft import LoraConfig

    more["peft_config"] = LoraConfig(r=16, target_modules=["q_proj", "v_proj"])
if METHOD in ("dpo", "kto") and not OPTIONS:
    more["ref_model"] = model()
extra = {"precompute_ref_log_probs": True} if "before" in OPTIONS else {}
args = settings(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=BATCH,
    max_steps=3,
    max_length=SEQ,
    report_to=[],
    save_strategy="no",
    gradient_checkpointing=False,
    bf16=True,
    optim="adamw_torch_fused",
    **extra,
)
data = Dataset.from_list([row(i) for i in range(6 * BATCH)])
trainer(
    model=model(), args=args, train_dataset=data, processing_class=tokenizer, **more
).train()
