#include "examples/llm_server/ops.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace llm {

Tensor MatMul(hbmprof::DeviceAllocator& device, const Tensor& x, const Tensor& w) {
  Tensor result(device, x.rows(), w.columns());
  const int columns = w.columns();
  for (int r = 0; r < x.rows(); ++r) {
    float* __restrict out = result.row(r);
    std::fill_n(out, columns, 0.0f);
    for (int k = 0; k < w.rows(); ++k) {
      const float factor = x.row(r)[k];
      const float* __restrict in = w.row(k);
      for (int c = 0; c < columns; ++c) out[c] += factor * in[c];
    }
  }
  return result;
}

Tensor RmsNorm(hbmprof::DeviceAllocator& device, const Tensor& x, const Tensor& gain) {
  Tensor result(device, x.rows(), x.columns());
  for (int r = 0; r < x.rows(); ++r) {
    float squares = 0;
    for (int c = 0; c < x.columns(); ++c) squares += x.row(r)[c] * x.row(r)[c];
    const float scale = 1.0f / std::sqrt(squares / x.columns() + 1e-6f);
    for (int c = 0; c < x.columns(); ++c) result.row(r)[c] = x.row(r)[c] * scale * gain.data()[c];
  }
  return result;
}

void Add(Tensor& x, const Tensor& y) {
  for (size_t i = 0; i < x.size(); ++i) x.data()[i] += y.data()[i];
}

void SwiGlu(Tensor& gate, const Tensor& up) {
  for (size_t i = 0; i < gate.size(); ++i) {
    const float g = gate.data()[i];
    gate.data()[i] = g / (1.0f + std::exp(-g)) * up.data()[i];
  }
}

void Rotate(float* row, int heads, int head_width, int position) {
  const int pairs = head_width / 2;
  for (int i = 0; i < pairs; ++i) {
    const float angle = position * std::pow(10000.0f, -static_cast<float>(i) / pairs);
    const float cosine = std::cos(angle);
    const float sine = std::sin(angle);
    for (int head = 0; head < heads; ++head) {
      float& a = row[head * head_width + i];
      float& b = row[head * head_width + i + pairs];
      const float turned = a * cosine - b * sine;
      b = a * sine + b * cosine;
      a = turned;
    }
  }
}

void Softmax(float* values, int count) {
  const float largest = *std::max_element(values, values + count);
  float sum = 0;
  for (int i = 0; i < count; ++i) {
    values[i] = std::exp(values[i] - largest);
    sum += values[i];
  }
  for (int i = 0; i < count; ++i) values[i] /= sum;
}

int Sample(const float* logits, int count, float temperature, std::mt19937& random) {
  if (temperature <= 0) return static_cast<int>(std::max_element(logits, logits + count) - logits);
  std::vector<float> probabilities(logits, logits + count);
  for (float& p : probabilities) p /= temperature;
  Softmax(probabilities.data(), count);
  float rest = std::uniform_real_distribution<float>()(random);
  for (int i = 0; i < count; ++i) {
    rest -= probabilities[i];
    if (rest < 0) return i;
  }
  return count - 1;
}

}  // namespace llm
