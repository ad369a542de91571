from transformers import AutoModelForCausalLM

AutoModelForCausalLM.from_pretrained("nobody/has-this-model-31415")
