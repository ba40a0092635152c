"""offline_sglang.py MODEL [RANKS]: SGLang's engine without a server, with CUDA graphs, makes a few tokens."""
import sys

import sglang


def main(model, ranks=1):
    engine = sglang.Engine(model_path=model, load_format="dummy", skip_tokenizer_init=True, mem_fraction_static=0.7,
                           context_length=2048, max_running_requests=16, attention_backend="triton",
                           sampling_backend="pytorch", cuda_graph_max_bs_prefill=64, log_level="info",
                           tp_size=int(ranks), disable_custom_all_reduce=True)
    answers = engine.generate(input_ids=[[1, 5, 7, 9]] * 4,
                              sampling_params={"max_new_tokens": 8, "temperature": 0, "ignore_eos": True})
    print("tokens", [len(answer["output_ids"]) for answer in answers], flush=True)
    engine.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
