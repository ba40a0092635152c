// The arithmetic of the model, on Tensors. Every row is computed by itself and in one fixed order, so a row's result
// does not depend on which other rows share its batch.
// Attention uses the KV cache and is in model.cc.
#ifndef HBMPROF_EXAMPLES_LLM_SERVER_OPS_H_
#define HBMPROF_EXAMPLES_LLM_SERVER_OPS_H_

#include <random>

#include "examples/llm_server/tensor.h"
#include "hbmprof/device_allocator.h"

namespace llm {

// x [n, k] times w [k, m]; the result is a new tensor on `device`.
Tensor MatMul(hbmprof::DeviceAllocator& device, const Tensor& x, const Tensor& w);

// Each row divided by its root mean square, times `gain` [1, columns].
Tensor RmsNorm(hbmprof::DeviceAllocator& device, const Tensor& x, const Tensor& gain);

// x += y.
void Add(Tensor& x, const Tensor& y);

// gate = silu(gate) * up.
void SwiGlu(Tensor& gate, const Tensor& up);

// Rotary position embedding: turns each pair (x[i], x[i + head_width/2]) of each head in a row by an angle that grows
// with `position`.
void Rotate(float* row, int heads, int head_width, int position);

// Replaces values[0, count) by probabilities.
void Softmax(float* values, int count);

// Draws an index of logits[0, count): at temperature 0 that of the largest logit.
int Sample(const float* logits, int count, float temperature, std::mt19937& random);

}  // namespace llm

#endif  // HBMPROF_EXAMPLES_LLM_SERVER_OPS_H_
