// Transformer: a decoder-only language model over bytes. Token embedding, then layers of RMSNorm, multi-head attention
// with rotary positions, RMSNorm and a SwiGLU MLP, then logits. float32. The weights are random with a fixed seed, so
// the answers have no meaning but are always the same.
#ifndef HBMPROF_EXAMPLES_LLM_SERVER_MODEL_H_
#define HBMPROF_EXAMPLES_LLM_SERVER_MODEL_H_

#include <cstddef>
#include <random>
#include <vector>

#include "examples/llm_server/kv_cache.h"
#include "examples/llm_server/tensor.h"
#include "hbmprof/device_allocator.h"

namespace llm {

// Tokens are bytes, and one more that begins and ends every text.
inline constexpr int kTextBoundary = 256;
inline constexpr int kVocabulary = 257;

struct ModelConfig {
  int layers = 8;
  int heads = 4;
  int head_width = 32;  // even
  int hidden = 352;     // of the MLP
  unsigned seed = 1;

  int width() const { return heads * head_width; }
};

// Matrices are [in, out]; gains are [1, width].
struct LayerWeights {
  Tensor attention_gain, query, key, value, output;
  Tensor mlp_gain, gate, up, down;
};

struct Weights {
  Tensor embedding;  // [vocabulary, width]
  std::vector<LayerWeights> layers;
  Tensor final_gain;
  Tensor logits;
};

// What one sequence contributes to a step: the tokens at its last tokens.size() positions.
struct Chunk {
  const KvSequence* sequence;
  std::vector<int> tokens;
};

class Transformer {
 public:
  // Weights are allocated from `weight_memory` now, activations from `activation_memory` in every step. Both must
  // live longer than the model.
  Transformer(const ModelConfig& config, hbmprof::DeviceAllocator& weight_memory,
              hbmprof::DeviceAllocator& activation_memory);

  // Runs all chunks of a batch at once: long ones (a prompt) and short ones (the latest token). Writes their keys
  // and values into the cache, which must already be extended for them, and returns one row of logits per chunk: those
  // of the token that follows it. A sequence is in at most one chunk. All activations but the result are freed again.
  Tensor Forward(const std::vector<Chunk>& batch, const KvCache& cache) const;

  const ModelConfig& config() const { return config_; }
  const Weights& weights() const { return weights_; }
  size_t parameters() const;

 private:
  // One token of a batch: a row in every activation.
  struct Row {
    const KvSequence* sequence;
    int position;
    int token;
  };

  Tensor Embed(const std::vector<Row>& rows) const;
  Tensor Attention(const Tensor& x, const std::vector<Row>& rows, int layer, const KvCache& cache) const;
  Tensor Mlp(const Tensor& x, const LayerWeights& w) const;

  const ModelConfig config_;
  hbmprof::DeviceAllocator& activation_memory_;
  const Weights weights_;
};

}  // namespace llm

#endif  // HBMPROF_EXAMPLES_LLM_SERVER_MODEL_H_
