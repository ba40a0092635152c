// Scheduler: serves requests in continuous batches. A request joins the running batch as soon as a slot is free and
// leaves it at its last token, so no request waits for the longest answer of a batch.
#ifndef HBMPROF_EXAMPLES_LLM_SERVER_SCHEDULER_H_
#define HBMPROF_EXAMPLES_LLM_SERVER_SCHEDULER_H_

#include <cstdint>
#include <deque>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "examples/llm_server/kv_cache.h"
#include "examples/llm_server/model.h"

namespace llm {

struct Request {
  int id = 0;                 // seed of the sampling, so that a request gets the same answer in any batch
  std::string request_class;  // becomes the tag of its KV pages
  std::string prompt;
  int max_tokens = 48;                // of the answer
  int client_leaves_after = 1 << 30;  // tokens, after which the request is cancelled
};

struct Answer {
  enum class End { kFinished, kCancelled, kOutOfMemory };
  Request request;
  std::string text;
  int tokens = 0;
  End end = End::kFinished;
};

class Scheduler {
 public:
  struct Options {
    int max_batch = 8;
    int max_prompt_tokens = 512;  // the beginning of a longer prompt is cut off
    float temperature = 0.8f;
    bool leak_cancelled = false;  // the bug: a cancelled request never frees its KV pages
  };

  // Both must live longer than the scheduler.
  Scheduler(const Transformer& model, KvCache& cache, const Options& options)
      : model_(model), cache_(cache), options_(options) {}

  void Submit(Request request) { waiting_.push_back(std::move(request)); }
  // Serves until every submitted request is answered. Returns the answers in the order in which they ended.
  std::vector<Answer> Run();

  int64_t prompt_tokens() const { return prompt_tokens_; }
  int64_t answer_tokens() const { return answer_tokens_; }

 private:
  struct Running {
    Answer answer;
    KvSequence sequence;
    std::mt19937 random;
    int last_token = kTextBoundary;
    bool ended = false;
  };

  // One step: admits and prefills new requests, computes the next token of all others, removes those that have ended.
  void Step();
  void Prefill(Request request);
  void DecodeBatch();
  bool ExtendSequence(Running& running, int tokens);
  void TakeToken(Running& running, const float* logits);
  void Leave(Running& running);

  const Transformer& model_;
  KvCache& cache_;
  const Options options_;
  std::deque<Request> waiting_;
  std::vector<Running> batch_;
  std::vector<Answer> answers_;
  int64_t prompt_tokens_ = 0;
  int64_t answer_tokens_ = 0;
  int64_t requests_ = 0;  // that have ended
};

}  // namespace llm

#endif  // HBMPROF_EXAMPLES_LLM_SERVER_SCHEDULER_H_
