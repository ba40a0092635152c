"""make_gguf.py FILE: a small Llama of zeros for llama.cpp, whose tokens are bytes and numbered words."""
import sys

import gguf
import numpy

WIDTH, WIDTH_OF_MLP, LAYERS, HEADS, KV_HEADS, WIDTH_OF_HEAD, TOKENS = 1024, 2816, 8, 16, 4, 64, 4096

writer = gguf.GGUFWriter(sys.argv[1], "llama")
writer.add_context_length(4096)
writer.add_embedding_length(WIDTH)
writer.add_block_count(LAYERS)
writer.add_feed_forward_length(WIDTH_OF_MLP)
writer.add_head_count(HEADS)
writer.add_head_count_kv(KV_HEADS)
writer.add_layer_norm_rms_eps(1e-5)
writer.add_rope_dimension_count(WIDTH_OF_HEAD)
writer.add_vocab_size(TOKENS)
writer.add_file_type(1)

special = ["<unk>", "<s>", "</s>"]
one_byte = [f"<0x{i:02X}>" for i in range(256)]
words = [f"w{i}" for i in range(TOKENS - len(special) - len(one_byte))]
kinds = gguf.TokenType
writer.add_tokenizer_model("llama")
writer.add_token_list([token.encode() for token in special + one_byte + words])
writer.add_token_scores([0.0] * TOKENS)
writer.add_token_types([kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL, *[kinds.BYTE] * 256, *[kinds.NORMAL] * len(words)])
writer.add_unk_token_id(0)
writer.add_bos_token_id(1)
writer.add_eos_token_id(2)


def add(name, *shape):
    writer.add_tensor(f"{name}.weight", numpy.zeros(shape, numpy.float16 if len(shape) > 1 else numpy.float32))


add("token_embd", TOKENS, WIDTH)
add("output_norm", WIDTH)
add("output", TOKENS, WIDTH)
for layer in range(LAYERS):
    add(f"blk.{layer}.attn_norm", WIDTH)
    add(f"blk.{layer}.attn_q", WIDTH, WIDTH)
    add(f"blk.{layer}.attn_k", KV_HEADS * WIDTH_OF_HEAD, WIDTH)
    add(f"blk.{layer}.attn_v", KV_HEADS * WIDTH_OF_HEAD, WIDTH)
    add(f"blk.{layer}.attn_output", WIDTH, WIDTH)
    add(f"blk.{layer}.ffn_norm", WIDTH)
    add(f"blk.{layer}.ffn_gate", WIDTH_OF_MLP, WIDTH)
    add(f"blk.{layer}.ffn_up", WIDTH_OF_MLP, WIDTH)
    add(f"blk.{layer}.ffn_down", WIDTH, WIDTH_OF_MLP)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
