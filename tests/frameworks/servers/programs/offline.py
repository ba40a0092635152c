"""offline.py MODEL [RANKS]: vLLM's engine without a server, with torch.compile and CUDA graphs, makes a few tokens."""
import sys

from vllm import LLM, SamplingParams


def main(model, ranks=1):
    engine = LLM(model=model, load_format="dummy", skip_tokenizer_init=True, max_model_len=2048, max_num_seqs=16,
                 max_num_batched_tokens=2048, gpu_memory_utilization=0.8, disable_log_stats=True,
                 tensor_parallel_size=int(ranks), disable_custom_all_reduce=True,
                 kernel_config={"enable_jit_warmup": False})  # minutes of compilation
    few = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True, detokenize=False)
    answers = engine.generate([{"prompt_token_ids": [1, 5, 7, 9]}] * 4, few)
    print("tokens", [len(answer.outputs[0].token_ids) for answer in answers], flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
