// The server of examples/llm_server: its model is compared with the formulas of a transformer without cache, pages and
// batches; its KV cache; and its scheduler.
//
// Not in this file: the program and its profiles (examples_test.cc).

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "examples/llm_server/kv_cache.h"
#include "examples/llm_server/model.h"
#include "examples/llm_server/ops.h"
#include "examples/llm_server/scheduler.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hbmprof/simulated_device.h"

namespace llm {
namespace {

using ::testing::Each;
using ::testing::FloatNear;
using ::testing::Pointwise;

using Vector = std::vector<double>;
using Matrix = std::vector<Vector>;

Vector Times(const Vector& x, const Tensor& w) {
  Vector result(w.columns());
  for (int c = 0; c < w.columns(); ++c) {
    for (int k = 0; k < w.rows(); ++k) result[c] += x[k] * w.row(k)[c];
  }
  return result;
}

Vector Normalized(const Vector& x, const Tensor& gain) {
  double squares = 0;
  for (double v : x) squares += v * v;
  Vector result(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    result[i] = x[i] / std::sqrt(squares / static_cast<double>(x.size()) + 1e-6) * gain.data()[i];
  }
  return result;
}

// Rotary position embedding as a rotation in the complex plane.
Vector Rotated(const Vector& x, const ModelConfig& config, int position) {
  Vector result(x.size());
  const int half = config.head_width / 2;
  for (int head = 0; head < config.heads; ++head) {
    for (int i = 0; i < half; ++i) {
      const int a = head * config.head_width + i;
      const double angle = position / std::pow(10000.0, static_cast<double>(i) / half);
      result[a] = x[a] * std::cos(angle) - x[a + half] * std::sin(angle);
      result[a + half] = x[a] * std::sin(angle) + x[a + half] * std::cos(angle);
    }
  }
  return result;
}

// Attention of the last of `keys` over all of them, head by head.
Vector Attended(const Vector& query, const Matrix& keys, const Matrix& values, const ModelConfig& config) {
  Vector result(query.size());
  for (int head = 0; head < config.heads; ++head) {
    const int begin = head * config.head_width;
    const int end = begin + config.head_width;
    Vector weight;
    double sum = 0;
    for (const Vector& key : keys) {
      double dot = 0;
      for (int c = begin; c < end; ++c) dot += query[c] * key[c];
      weight.push_back(std::exp(dot / std::sqrt(config.head_width)));
      sum += weight.back();
    }
    for (size_t p = 0; p < values.size(); ++p) {
      for (int c = begin; c < end; ++c) result[c] += weight[p] / sum * values[p][c];
    }
  }
  return result;
}

// The logits after each of `tokens`, by the formulas alone.
Matrix NaiveLogits(const Transformer& model, const std::vector<int>& tokens) {
  const ModelConfig& config = model.config();
  Matrix x;
  for (int token : tokens) {
    const float* row = model.weights().embedding.row(token);
    x.emplace_back(row, row + config.width());
  }
  for (const LayerWeights& w : model.weights().layers) {
    Matrix keys;
    Matrix values;
    for (size_t p = 0; p < x.size(); ++p) {
      const int position = static_cast<int>(p);
      const Vector n = Normalized(x[p], w.attention_gain);
      keys.push_back(Rotated(Times(n, w.key), config, position));
      values.push_back(Times(n, w.value));
      const Vector mixed = Attended(Rotated(Times(n, w.query), config, position), keys, values, config);
      const Vector attention = Times(mixed, w.output);
      for (int c = 0; c < config.width(); ++c) x[p][c] += attention[c];

      const Vector m = Normalized(x[p], w.mlp_gain);
      Vector gate = Times(m, w.gate);
      const Vector up = Times(m, w.up);
      for (size_t i = 0; i < gate.size(); ++i) gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
      const Vector mlp = Times(gate, w.down);
      for (int c = 0; c < config.width(); ++c) x[p][c] += mlp[c];
    }
  }
  Matrix logits;
  for (const Vector& row : x)
    logits.push_back(Times(Normalized(row, model.weights().final_gain), model.weights().logits));
  return logits;
}

std::vector<float> Row(const Tensor& t, int r) { return std::vector<float>(t.row(r), t.row(r) + t.columns()); }

class LlmServerTest : public ::testing::Test {
 protected:
  // Small, but more than one of everything.
  static ModelConfig Config() {
    ModelConfig config;
    config.layers = 2;
    config.heads = 2;
    config.head_width = 8;
    config.hidden = 24;
    return config;
  }

  // The logits after the last of `tokens`, which the sequence gets now.
  std::vector<float> Append(KvSequence& sequence, const std::vector<int>& tokens) {
    EXPECT_TRUE(cache_.Extend(sequence, static_cast<int>(tokens.size())).ok());
    return Row(model_.Forward({{&sequence, tokens}}, cache_), 0);
  }

  // The answers to `count` prompts of various lengths, by request id.
  std::map<int, Answer> Serve(Scheduler::Options options, int count, int cancel_every = 0) {
    Scheduler scheduler(model_, cache_, options);
    for (int id = 1; id <= count; ++id) {
      Request request;
      request.id = id;
      request.request_class = id % 2 == 0 ? "chat" : "batch";
      request.prompt = std::string(id * 7 % 40, static_cast<char>('a' + id));
      request.max_tokens = 10 + id;
      if (cancel_every > 0 && id % cancel_every == 0) request.client_leaves_after = 5;
      scheduler.Submit(std::move(request));
    }
    std::map<int, Answer> answers;
    for (Answer& answer : scheduler.Run()) {
      const int id = answer.request.id;
      EXPECT_TRUE(answers.emplace(id, std::move(answer)).second) << "request " << id << " was answered twice";
    }
    EXPECT_EQ(answers.size(), static_cast<size_t>(count));
    return answers;
  }

  std::unique_ptr<hbmprof::SimulatedDevice> device_ = *hbmprof::SimulatedDevice::Create({});
  Transformer model_{Config(), *device_, *device_};
  KvCache cache_{*device_, Config().layers, Config().width(), /*max_pages=*/100};
};

// 40 tokens: two full pages and a part of a third.
std::vector<int> SomeTokens() {
  std::vector<int> tokens;
  for (int i = 0; i < 40; ++i) tokens.push_back(i * i * 7 % kVocabulary);
  return tokens;
}

TEST_F(LlmServerTest, PrefillMatchesFullAttention) {
  const std::vector<int> tokens = SomeTokens();
  const Vector expected = NaiveLogits(model_, tokens).back();
  KvSequence sequence;
  EXPECT_THAT(Append(sequence, tokens), Pointwise(FloatNear(1e-4f), expected));
  cache_.Release(sequence);
}

TEST_F(LlmServerTest, DecodingMatchesFullAttention) {
  const std::vector<int> tokens = SomeTokens();
  const Matrix expected = NaiveLogits(model_, tokens);
  KvSequence sequence;
  Append(sequence, std::vector<int>(tokens.begin(), tokens.begin() + 10));
  for (size_t i = 10; i < tokens.size(); ++i) {
    ASSERT_THAT(Append(sequence, {tokens[i]}), Pointwise(FloatNear(1e-4f), expected[i])) << "token " << i;
  }
  cache_.Release(sequence);
}

TEST_F(LlmServerTest, BatchDoesNotChangeLogits) {
  const std::vector<int> tokens = SomeTokens();
  KvSequence alone;
  const std::vector<float> expected = Append(alone, tokens);

  KvSequence first;
  KvSequence second;
  KvSequence third;
  Append(first, {1, 2, 3});
  ASSERT_TRUE(cache_.Extend(first, 1).ok());
  ASSERT_TRUE(cache_.Extend(second, static_cast<int>(tokens.size())).ok());
  ASSERT_TRUE(cache_.Extend(third, 2).ok());
  const Tensor logits = model_.Forward({{&first, {4}}, {&second, tokens}, {&third, {5, 6}}}, cache_);
  ASSERT_EQ(logits.rows(), 3);
  EXPECT_EQ(Row(logits, 1), expected);
  EXPECT_NE(Row(logits, 0), expected);
  for (KvSequence* sequence : {&alone, &first, &second, &third}) cache_.Release(*sequence);
}

TEST_F(LlmServerTest, ForwardFreesActivations) {
  const auto live = [this] { return device_->GetStats().num_live; };
  KvSequence sequence;
  ASSERT_TRUE(cache_.Extend(sequence, 3).ok());
  const int64_t before = live();
  {
    const Tensor logits = model_.Forward({{&sequence, {1, 2, 3}}}, cache_);
    EXPECT_EQ(live(), before + 1);
  }
  EXPECT_EQ(live(), before);
  cache_.Release(sequence);
}

TEST_F(LlmServerTest, CacheSlotsAreDistinct) {
  KvSequence a;
  KvSequence b;
  ASSERT_TRUE(cache_.Extend(a, 20).ok());
  ASSERT_TRUE(cache_.Extend(b, 17).ok());
  EXPECT_EQ(cache_.pages_in_use(), 4);
  const int width = Config().width();
  const auto each = [&](auto&& visit) {
    float value = 0;
    for (const KvSequence* sequence : {&a, &b}) {
      for (int layer = 0; layer < Config().layers; ++layer) {
        for (int position = 0; position < sequence->length; ++position) {
          visit(cache_.Key(*sequence, layer, position), value += 1);
          visit(cache_.Value(*sequence, layer, position), value += 1);
        }
      }
    }
  };
  each([&](float* place, float value) { std::fill_n(place, width, value); });
  each([&](float* place, float value) { ASSERT_THAT(std::vector<float>(place, place + width), Each(value)); });
  cache_.Release(a);
  cache_.Release(b);
  EXPECT_EQ(cache_.pages_in_use(), 0);
}

TEST_F(LlmServerTest, PageIsOneAllocation) {
  const hbmprof::SimulatedDevice::Stats before = device_->GetStats();
  KvSequence sequence;
  ASSERT_TRUE(cache_.Extend(sequence, KvCache::kPageTokens).ok());
  ASSERT_TRUE(cache_.Extend(sequence, 1).ok());
  const hbmprof::SimulatedDevice::Stats after = device_->GetStats();
  EXPECT_EQ(after.num_live - before.num_live, 2);
  EXPECT_EQ(after.bytes_in_use - before.bytes_in_use, static_cast<int64_t>(2 * cache_.page_bytes()));
  cache_.Release(sequence);
  EXPECT_EQ(device_->GetStats().bytes_in_use, before.bytes_in_use);
}

TEST_F(LlmServerTest, FullCacheKeepsSequenceLength) {
  KvCache cache(*device_, Config().layers, Config().width(), /*max_pages=*/2);
  KvSequence sequence;
  ASSERT_TRUE(cache.Extend(sequence, 20).ok());
  EXPECT_EQ(cache.Extend(sequence, 13).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(sequence.length, 20);
  EXPECT_TRUE(cache.Extend(sequence, 12).ok());
  cache.Release(sequence);
}

TEST_F(LlmServerTest, BatchSizeDoesNotChangeAnswers) {
  Scheduler::Options options;
  options.max_batch = 1;
  const std::map<int, Answer> one_by_one = Serve(options, 20);
  for (const int max_batch : {3, 8, 20}) {
    options.max_batch = max_batch;
    for (const auto& [id, answer] : Serve(options, 20)) {
      EXPECT_EQ(answer.text, one_by_one.at(id).text) << "request " << id << " in batches of " << max_batch;
    }
  }
  EXPECT_NE(one_by_one.at(1).text, one_by_one.at(2).text);
}

TEST_F(LlmServerTest, AnswersEndAtBoundaryOrLimit) {
  int at_boundary = 0;
  for (const auto& [id, answer] : Serve({}, 30)) {
    EXPECT_EQ(answer.end, Answer::End::kFinished);
    const int length = static_cast<int>(answer.text.size());
    if (answer.tokens < answer.request.max_tokens) {
      ++at_boundary;
      EXPECT_EQ(length, answer.tokens - 1) << "request " << id << " ended without a boundary";
    } else {
      EXPECT_EQ(answer.tokens, answer.request.max_tokens);
    }
  }
  EXPECT_GT(at_boundary, 0);
  EXPECT_LT(at_boundary, 30);
}

TEST_F(LlmServerTest, CancelledRequestsFreeTheirPages) {
  const std::map<int, Answer> answers = Serve({}, 20, /*cancel_every=*/2);
  const auto cancelled = [](const auto& entry) { return entry.second.end == Answer::End::kCancelled; };
  EXPECT_GT(std::count_if(answers.begin(), answers.end(), cancelled), 5);
  EXPECT_EQ(cache_.pages_in_use(), 0);
}

TEST_F(LlmServerTest, LeakKeepsPagesOfCancelledRequests) {
  Scheduler::Options options;
  options.leak_cancelled = true;
  int64_t pages = 0;
  for (const auto& [id, answer] : Serve(options, 20, /*cancel_every=*/2)) {
    if (answer.end != Answer::End::kCancelled) continue;
    // The boundary, the prompt, and every token of the answer but the last, which was never fed back.
    const size_t positions = 1 + answer.request.prompt.size() + answer.tokens - 1;
    pages += static_cast<int64_t>((positions + KvCache::kPageTokens - 1) / KvCache::kPageTokens);
  }
  EXPECT_GT(pages, 5);
  EXPECT_EQ(cache_.pages_in_use(), pages);
}

TEST_F(LlmServerTest, RequestWithoutPageEnds) {
  KvCache small(*device_, Config().layers, Config().width(), /*max_pages=*/3);
  Scheduler scheduler(model_, small, {});
  for (int id = 1; id <= 4; ++id) {
    Request request;
    request.id = id;
    request.prompt = id == 2 ? std::string(100, 'x') : "short";
    request.max_tokens = 3;
    scheduler.Submit(std::move(request));
  }
  for (const Answer& answer : scheduler.Run()) {
    const bool too_long = answer.request.id == 2;
    EXPECT_EQ(answer.end, too_long ? Answer::End::kOutOfMemory : Answer::End::kFinished) << answer.request.id;
  }
  EXPECT_EQ(small.pages_in_use(), 0);
}

TEST_F(LlmServerTest, LongPromptIsTruncatedAtFront) {
  Scheduler::Options options;
  options.max_prompt_tokens = 8;
  std::vector<std::string> texts;
  for (const char* prompt : {"cut off: 12345678", "12345678", "1234567x"}) {
    Scheduler scheduler(model_, cache_, options);
    Request request;
    request.prompt = prompt;
    scheduler.Submit(std::move(request));
    texts.push_back(scheduler.Run().at(0).text);
  }
  EXPECT_EQ(texts[0], texts[1]);
  EXPECT_NE(texts[1], texts[2]);
}

TEST(SampleTest, TemperatureZeroIsGreedy) {
  const float logits[] = {0.1f, 2.0f, -1.0f};
  std::mt19937 random(1);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(Sample(logits, 3, 0, random), 1);
}

TEST(SampleTest, FrequenciesFollowSoftmax) {
  const float logits[] = {0, 1, 2};
  std::mt19937 random(1);
  double count[3] = {};
  for (int i = 0; i < 30000; ++i) ++count[Sample(logits, 3, 2.0f, random)];
  EXPECT_NEAR(count[1] / count[0], std::exp(0.5), 0.1);
  EXPECT_NEAR(count[2] / count[0], std::exp(1.0), 0.15);
}

}  // namespace
}  // namespace llm
