#include "examples/llm_server/model.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "examples/llm_server/ops.h"

namespace llm {
namespace {

// The scale keeps the variance of the activations.
Tensor RandomMatrix(hbmprof::DeviceAllocator& memory, int rows, int columns, std::mt19937& random) {
  Tensor w(memory, rows, columns);
  std::normal_distribution<float> normal(0, 1 / std::sqrt(static_cast<float>(rows)));
  for (size_t i = 0; i < w.size(); ++i) w.data()[i] = normal(random);
  return w;
}

Tensor UnitGain(hbmprof::DeviceAllocator& memory, int width) {
  Tensor gain(memory, 1, width);
  std::fill_n(gain.data(), gain.size(), 1.0f);
  return gain;
}

// The members of a braced list are initialized in order, so the weights depend only on the seed.
LayerWeights LoadLayer(const ModelConfig& config, hbmprof::DeviceAllocator& memory, std::mt19937& random) {
  const int width = config.width();
  return LayerWeights{
      UnitGain(memory, width),
      RandomMatrix(memory, width, width, random),
      RandomMatrix(memory, width, width, random),
      RandomMatrix(memory, width, width, random),
      RandomMatrix(memory, width, width, random),
      UnitGain(memory, width),
      RandomMatrix(memory, width, config.hidden, random),
      RandomMatrix(memory, width, config.hidden, random),
      RandomMatrix(memory, config.hidden, width, random),
  };
}

[[gnu::noinline]] Weights LoadWeights(const ModelConfig& config, hbmprof::DeviceAllocator& memory) {
  std::mt19937 random(config.seed);
  Tensor embedding = RandomMatrix(memory, kVocabulary, config.width(), random);
  std::vector<LayerWeights> layers;
  for (int i = 0; i < config.layers; ++i) layers.push_back(LoadLayer(config, memory, random));
  return Weights{std::move(embedding), std::move(layers), UnitGain(memory, config.width()),
                 RandomMatrix(memory, config.width(), kVocabulary, random)};
}

}  // namespace

Transformer::Transformer(const ModelConfig& config, hbmprof::DeviceAllocator& weight_memory,
                         hbmprof::DeviceAllocator& activation_memory)
    : config_(config), activation_memory_(activation_memory), weights_(LoadWeights(config, weight_memory)) {}

size_t Transformer::parameters() const {
  size_t count = weights_.embedding.size() + weights_.final_gain.size() + weights_.logits.size();
  for (const LayerWeights& w : weights_.layers) {
    for (const Tensor* t :
         {&w.attention_gain, &w.query, &w.key, &w.value, &w.output, &w.mlp_gain, &w.gate, &w.up, &w.down}) {
      count += t->size();
    }
  }
  return count;
}

Tensor Transformer::Forward(const std::vector<Chunk>& batch, const KvCache& cache) const {
  std::vector<Row> rows;
  std::vector<int> last_row_of_chunk;
  for (const Chunk& chunk : batch) {
    int position = chunk.sequence->length - static_cast<int>(chunk.tokens.size());
    for (int token : chunk.tokens) rows.push_back({chunk.sequence, position++, token});
    last_row_of_chunk.push_back(static_cast<int>(rows.size()) - 1);
  }

  Tensor x = Embed(rows);
  for (int layer = 0; layer < config_.layers; ++layer) {
    const LayerWeights& w = weights_.layers[layer];
    Add(x, Attention(RmsNorm(activation_memory_, x, w.attention_gain), rows, layer, cache));
    Add(x, Mlp(RmsNorm(activation_memory_, x, w.mlp_gain), w));
  }

  Tensor last(activation_memory_, static_cast<int>(batch.size()), config_.width());
  for (int i = 0; i < last.rows(); ++i) std::copy_n(x.row(last_row_of_chunk[i]), x.columns(), last.row(i));
  return MatMul(activation_memory_, RmsNorm(activation_memory_, last, weights_.final_gain), weights_.logits);
}

Tensor Transformer::Embed(const std::vector<Row>& rows) const {
  Tensor x(activation_memory_, static_cast<int>(rows.size()), config_.width());
  for (int i = 0; i < x.rows(); ++i) std::copy_n(weights_.embedding.row(rows[i].token), x.columns(), x.row(i));
  return x;
}

Tensor Transformer::Attention(const Tensor& x, const std::vector<Row>& rows, int layer, const KvCache& cache) const {
  const LayerWeights& w = weights_.layers[layer];
  const int head_width = config_.head_width;
  Tensor queries = MatMul(activation_memory_, x, w.query);
  Tensor keys = MatMul(activation_memory_, x, w.key);
  const Tensor values = MatMul(activation_memory_, x, w.value);
  for (int i = 0; i < x.rows(); ++i) {
    const Row& row = rows[i];
    Rotate(queries.row(i), config_.heads, head_width, row.position);
    Rotate(keys.row(i), config_.heads, head_width, row.position);
    std::copy_n(keys.row(i), keys.columns(), cache.Key(*row.sequence, layer, row.position));
    std::copy_n(values.row(i), values.columns(), cache.Value(*row.sequence, layer, row.position));
  }

  Tensor mixed(activation_memory_, x.rows(), config_.width());
  std::fill_n(mixed.data(), mixed.size(), 0.0f);
  const float scale = 1.0f / std::sqrt(static_cast<float>(head_width));
  std::vector<float> scores;
  for (int i = 0; i < x.rows(); ++i) {
    const Row& row = rows[i];
    scores.resize(row.position + 1);
    for (int offset = 0; offset < config_.width(); offset += head_width) {  // of each head
      const float* query = queries.row(i) + offset;
      for (int p = 0; p <= row.position; ++p) {
        const float* key = cache.Key(*row.sequence, layer, p) + offset;
        float dot = 0;
        for (int c = 0; c < head_width; ++c) dot += query[c] * key[c];
        scores[p] = dot * scale;
      }
      Softmax(scores.data(), row.position + 1);
      float* out = mixed.row(i) + offset;
      for (int p = 0; p <= row.position; ++p) {
        const float* value = cache.Value(*row.sequence, layer, p) + offset;
        for (int c = 0; c < head_width; ++c) out[c] += scores[p] * value[c];
      }
    }
  }
  return MatMul(activation_memory_, mixed, w.output);
}

Tensor Transformer::Mlp(const Tensor& x, const LayerWeights& w) const {
  Tensor gate = MatMul(activation_memory_, x, w.gate);
  SwiGlu(gate, MatMul(activation_memory_, x, w.up));
  return MatMul(activation_memory_, gate, w.down);
}

}  // namespace llm
