#include "examples/llm_server/scheduler.h"

#include <algorithm>

#include "examples/llm_server/ops.h"
#include "hbmprof/hbmprof.h"
#include "hbmprof/tag.h"

// The functions that a profile of this server should name are not inlined.

namespace llm {

std::vector<Answer> Scheduler::Run() {
  while (!waiting_.empty() || !batch_.empty()) Step();
  return std::exchange(answers_, {});
}

[[gnu::noinline]] void Scheduler::Step() {
  DecodeBatch();
  while (!waiting_.empty() && static_cast<int>(batch_.size()) < options_.max_batch) {
    Request request = std::move(waiting_.front());
    waiting_.pop_front();
    Prefill(std::move(request));
  }
  for (Running& running : batch_) {
    if (running.ended) Leave(running);
  }
  batch_.erase(std::remove_if(batch_.begin(), batch_.end(), [](const Running& r) { return r.ended; }), batch_.end());
}

[[gnu::noinline]] void Scheduler::Prefill(Request request) {
  const hbmprof::ScopedTag phase("phase", "prefill");
  const hbmprof::ScopedTag request_class("request_class", request.request_class);
  std::vector<int> tokens = {kTextBoundary};
  const size_t length = std::min<size_t>(request.prompt.size(), options_.max_prompt_tokens);
  for (size_t i = request.prompt.size() - length; i < request.prompt.size(); ++i) {
    tokens.push_back(static_cast<unsigned char>(request.prompt[i]));
  }

  Running& running = batch_.emplace_back();
  running.random.seed(request.id);
  running.answer.request = std::move(request);
  if (!ExtendSequence(running, static_cast<int>(tokens.size()))) return;
  prompt_tokens_ += static_cast<int64_t>(tokens.size());
  const Tensor logits = model_.Forward({{&running.sequence, std::move(tokens)}}, cache_);
  TakeToken(running, logits.row(0));
}

// Computes the next token of every request in the batch, in one pass through the model.
[[gnu::noinline]] void Scheduler::DecodeBatch() {
  const hbmprof::ScopedTag phase("phase", "decode");
  std::vector<Running*> members;
  std::vector<Chunk> chunks;
  for (Running& running : batch_) {
    const hbmprof::ScopedTag request_class("request_class", running.answer.request.request_class);
    if (!ExtendSequence(running, 1)) continue;
    members.push_back(&running);
    chunks.push_back({&running.sequence, {running.last_token}});
  }
  if (members.empty()) return;
  const Tensor logits = model_.Forward(chunks, cache_);
  for (size_t i = 0; i < members.size(); ++i) TakeToken(*members[i], logits.row(static_cast<int>(i)));
}

// Returns false if the device has no page left. The request then ends, and other requests can use its pages.
bool Scheduler::ExtendSequence(Running& running, int tokens) {
  if (cache_.Extend(running.sequence, tokens).ok()) return true;
  cache_.Release(running.sequence);
  running.answer.end = Answer::End::kOutOfMemory;
  running.ended = true;
  return false;
}

void Scheduler::TakeToken(Running& running, const float* logits) {
  Answer& answer = running.answer;
  running.last_token = Sample(logits, kVocabulary, options_.temperature, running.random);
  ++answer_tokens_;
  ++answer.tokens;
  if (running.last_token != kTextBoundary) answer.text += static_cast<char>(running.last_token);
  if (running.last_token == kTextBoundary || answer.tokens >= answer.request.max_tokens) {
    running.ended = true;
  } else if (answer.tokens >= answer.request.client_leaves_after) {
    answer.end = Answer::End::kCancelled;
    running.ended = true;
  }
}

void Scheduler::Leave(Running& running) {
  const bool cancelled = running.answer.end == Answer::End::kCancelled;
  if (!(cancelled && options_.leak_cancelled)) cache_.Release(running.sequence);
  answers_.push_back(std::move(running.answer));
  hbmprof::SetCounter("requests", ++requests_);
}

}  // namespace llm
