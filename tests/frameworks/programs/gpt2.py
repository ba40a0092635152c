"""A random GPT-2 of transformers decodes with its KV cache. Not with generate(): its loop ends when the device says so."""
import torch
from oracle import moment
from transformers import GPT2Config, GPT2LMHeadModel


@torch.inference_mode()
def decode(model, tokens, steps):
    cache = None
    for number in range(steps):
        out = model(tokens if cache is None else tokens[:, -1:], past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        tokens = torch.cat([tokens, out.logits[:, -1:].argmax(-1)], dim=1)
        if number == steps // 2:
            moment("half of the tokens")
    return tokens, cache


def main():
    config = GPT2Config(n_layer=4, n_embd=256, n_head=4, vocab_size=5000, bos_token_id=1, eos_token_id=None)
    model = GPT2LMHeadModel(config).cuda().eval()
    moment("the model")
    kept = decode(model, torch.randint(0, 5000, (4, 32), device="cuda"), 64)
    moment("the end")
    return kept


main()
