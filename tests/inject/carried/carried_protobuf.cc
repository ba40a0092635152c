// This module's own copy of protobuf: messages as text, bytes and JSON, descriptors, messages made from descriptors,
// arenas, and the errors for text that cannot be parsed.
#include <google/protobuf/arena.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/dynamic_message.h>
#include <google/protobuf/text_format.h>
#include <google/protobuf/util/json_util.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "proto/profile.pb.h"
#include "tests/inject/carried/carried.h"

namespace pb = google::protobuf;
using hbmprof::pprof::Profile;

namespace {

void Print(const char* who, const char* what, const std::string& text) {
  std::printf("%s: %s: %s\n", who, what, text.c_str());
}

std::string Hex(const std::string& bytes) {
  std::string hex;
  for (const char byte : bytes) {
    char two[3];
    std::snprintf(two, sizeof(two), "%02x", static_cast<unsigned char>(byte));
    hex += two;
  }
  return hex;
}

// One scale only, because the order of a map's entries is not defined.
constexpr char kText[] = R"(
  title: "tower" sort: SIDE
  parts { name: "base" heights: -3 heights: 40 } parts { name: "top" }
  scales { key: "x" value: 0.5 }
  model { title: "paper" person: "Ada" })";

}  // namespace

int use_carried(const char* who) {
  Profile profile;
  if (!pb::TextFormat::ParseFromString(kText, &profile)) return 1;
  Print(who, "text", profile.ShortDebugString());
  std::string bytes;
  if (!profile.SerializeToString(&bytes)) return 2;
  Print(who, "bytes", Hex(bytes));
  std::string json;
  if (!pb::util::MessageToJsonString(profile, &json).ok()) return 3;
  Print(who, "JSON", json);

  // The file of that name is this module's.
  const pb::FileDescriptor* file = pb::DescriptorPool::generated_pool()->FindFileByName("proto/profile.proto");
  if (file == nullptr || file != Profile::descriptor()->file()) return 4;
  Print(who, "file", file->DebugString());
  // The same in another pool, and a message of a type that only this pool has.
  pb::FileDescriptorProto copy;
  file->CopyTo(&copy);
  copy.mutable_message_type(0)->mutable_field(0)->set_name("heading");
  pb::DescriptorPool pool;
  const pb::FileDescriptor* built = pool.BuildFile(copy);
  if (built == nullptr) return 5;
  pb::DynamicMessageFactory factory;
  std::unique_ptr<pb::Message> dynamic(factory.GetPrototype(built->message_type(0))->New());
  if (!dynamic->ParseFromString(bytes)) return 6;
  Print(who, "dynamic", dynamic->ShortDebugString());

  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      pb::Arena arena;
      for (int i = 0; i < 100; ++i) {
        auto* message = pb::Arena::CreateMessage<Profile>(&arena);
        if (!message->ParseFromString(bytes) || message->SerializeAsString() != bytes) std::abort();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();

  // Prints the error and its position to stderr.
  Profile bad;
  Print(who, "bad text", pb::TextFormat::ParseFromString("title: \"a\"\nheading: 1", &bad) ? "parsed" : "refused");
  return bad.ParseFromString("\x0a\x7f") ? 7 : 0;
}

void fail_carried() { GOOGLE_LOG(FATAL) << "the program gives up"; }
