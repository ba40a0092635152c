#include "src/tool/profile/profile_reader.h"

#include <zlib.h>

#include <new>

#include "absl/cleanup/cleanup.h"
#include "src/tool/util/files.h"
#include "src/tool/util/text.h"

namespace hbmprof::tool {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 30;
// The part of the memory limit that a decompressed file may take. Compression makes real profiles about ten times
// smaller, and those of recursive programs hundreds of times.
constexpr size_t kPlainShare = 4;
// A parsed profile takes about ten times its bytes. A file of empty messages of two bytes would take fifty times its
// bytes and is not a profile.
constexpr size_t kMaxExpansion = 24;
// A compressed file has at least this part of its decompressed bytes as input (files.h). A frame of a stack can
// be one byte of the decompressed profile. It takes 16 bytes in the message, because lists have up to twice the room
// that they need, and 8 in ProfileSet.
constexpr size_t kInputShare = 8;
constexpr size_t kMinParsedBytes = size_t{64} << 20;

constexpr char kMoreMemory[] = "; HBMPROF_TOOL_MEMORY=8GiB in the environment sets another limit";
constexpr char kDamaged[] = "; the file is damaged or was cut short: copy it again or write a new one";

absl::Status Invalid(const std::string& name, std::string_view what) { return InvalidArgument(name, ": ", what); }

absl::StatusOr<std::string> Gunzip(std::string_view bytes, const std::string& name) {
  z_stream stream = {};
  constexpr int kGzipWindowBits = 15 + 16;
  if (inflateInit2(&stream, kGzipWindowBits) != Z_OK) return ResourceExhausted(name + ": out of memory");
  const absl::Cleanup end = [&stream] { inflateEnd(&stream); };

  std::string plain;
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  const auto position = [&] { return bytes.size() - stream.avail_in; };
  std::string chunk(1 << 18, '\0');
  while (true) {
    stream.next_out = reinterpret_cast<Bytef*>(chunk.data());
    stream.avail_out = static_cast<uInt>(chunk.size());
    const int result = inflate(&stream, Z_NO_FLUSH);
    plain.append(chunk.data(), chunk.size() - stream.avail_out);
    if (const size_t limit = MemoryFor(bytes.size()) / kPlainShare; plain.size() > limit) {
      return ResourceExhausted(name, ": its ", bytes.size(), " bytes are more than ",
                               Bytes(static_cast<int64_t>(limit)), " when decompressed, the limit for this file",
                               kMoreMemory);
    }
    if (plain.size() > kMaxBytes) {
      return ResourceExhausted(name + ": holds more than 1 GiB when decompressed, which no profile needs");
    }
    if (result == Z_STREAM_END) {
      if (stream.avail_in == 0) return plain;
      // A gzip file can have several members.
      if (bytes[position()] != '\x1f' || inflateReset(&stream) != Z_OK) {
        return Invalid(name, Cat("the gzip stream ends at byte ", position(), " of ", bytes.size(), kDamaged));
      }
    } else if (result == Z_MEM_ERROR) {
      return ResourceExhausted(name + ": out of memory");
    } else if (result != Z_OK && result != Z_BUF_ERROR) {
      return Invalid(name, Cat("bad gzip data at byte ", position(), " of ", bytes.size(), " (",
                               stream.msg == nullptr ? "unknown" : stream.msg, ")", kDamaged));
    } else if (stream.avail_in == 0 && stream.avail_out != 0) {
      return Invalid(name, Cat("the gzip stream is cut off after byte ", bytes.size(), kDamaged));
    }
  }
}

// Checks every reference, and numbers the entries (RawProfile).
class Checker {
 public:
  Checker(pprof::Profile& profile, const std::string& name) : profile_(profile), name_(name) {}

  absl::Status Check() {
    if (profile_.sample_type().empty() && profile_.string_table().empty()) {
      return Invalid(name_, "this is not a pprof profile: it has neither sample types nor strings");
    }
    if (profile_.string_table().empty() || !profile_.string_table(0).empty()) {
      return Invalid(name_, "string_table does not begin with the empty string: this is not a pprof profile");
    }
    for (int i = 0; i < profile_.sample_type_size(); ++i) CheckValueType("sample_type", i, profile_.sample_type(i));
    if (profile_.has_period_type()) CheckValueType("period_type", 0, profile_.period_type());
    Text("drop_frames", 0, "", profile_.drop_frames());
    Text("keep_frames", 0, "", profile_.keep_frames());
    Text("default_sample_type", 0, "", profile_.default_sample_type());
    Text("doc_url", 0, "", profile_.doc_url());
    for (int i = 0; i < profile_.comment_size(); ++i) Text("comment", i, "", profile_.comment(i));
    CheckCode();
    CheckSamples();
    if (problem_.empty()) return absl::OkStatus();
    return Invalid(
        name_, problem_ + "; the profile is inconsistent: the program that wrote it has a bug, or the file is damaged");
  }

 private:
  using Numbers = absl::flat_hash_map<uint64_t, uint64_t>;  // by id

  template <typename Entries>
  Numbers NumberOf(std::string_view table, Entries* entries) {
    Numbers numbers;
    numbers.reserve(static_cast<size_t>(entries->size()));
    for (int i = 0; i < entries->size(); ++i) {
      const uint64_t id = entries->Get(i).id();
      if (id == 0) Fail(table, i, "its id is 0");
      if (!numbers.try_emplace(id, i + 1).second) Fail(table, i, Cat("its id ", id, " is also the id of another one"));
      entries->Mutable(i)->set_id(static_cast<uint64_t>(i) + 1);
    }
    return numbers;
  }

  void CheckCode() {
    const Numbers mappings = NumberOf("mapping", profile_.mutable_mapping());
    for (int i = 0; i < profile_.mapping_size(); ++i) {
      Text("mapping", i, "filename", profile_.mapping(i).filename());
      Text("mapping", i, "build_id", profile_.mapping(i).build_id());
    }
    const Numbers functions = NumberOf("function", profile_.mutable_function());
    for (int i = 0; i < profile_.function_size(); ++i) {
      const pprof::Function& function = profile_.function(i);
      Text("function", i, "name", function.name());
      Text("function", i, "system_name", function.system_name());
      Text("function", i, "filename", function.filename());
    }
    locations_ = NumberOf("location", profile_.mutable_location());
    for (int i = 0; i < profile_.location_size(); ++i) {
      pprof::Location& location = *profile_.mutable_location(i);
      location.set_mapping_id(ValueOr(mappings, location.mapping_id()));
      for (pprof::Line& line : *location.mutable_line()) {
        const uint64_t function = ValueOr(functions, line.function_id());
        if (function == 0) {
          Fail("location", i, Cat("a line names function ", line.function_id(), ", which does not exist"));
        }
        line.set_function_id(function);
      }
    }
  }

  void CheckSamples() {
    for (int i = 0; i < profile_.sample_size() && problem_.empty(); ++i) {
      pprof::Sample& sample = *profile_.mutable_sample(i);
      if (sample.value_size() != profile_.sample_type_size()) {
        Fail("sample", i,
             Cat("it has ", sample.value_size(), " values for ", profile_.sample_type_size(), " sample types"));
      }
      for (uint64_t& id : *sample.mutable_location_id()) {
        const uint64_t location = ValueOr(locations_, id);
        if (location == 0) Fail("sample", i, Cat("it names location ", id, ", which does not exist"));
        id = location;
      }
      for (const pprof::Label& label : sample.label()) {
        Text("sample", i, "label.key", label.key());
        Text("sample", i, "label.str", label.str());
        Text("sample", i, "label.num_unit", label.num_unit());
      }
      const pprof::Ages& ages = sample.ages();
      constexpr uint32_t kMaxClasses = 64;
      constexpr uint32_t kMaxWidthLog2 = 40;
      constexpr int kOctaves = 24;
      if (ages.class_width_log2() > kMaxWidthLog2 || ages.first_class() > kMaxClasses ||
          ages.born_bytes_size() > static_cast<int>(kMaxClasses - ages.first_class()) ||
          ages.born_bytes_size() != ages.born_counts_size() || ages.freed_by_octave_size() > kOctaves) {
        Fail("sample", i, "the ages of its buffers are not as docs/spec/profile.md describes them");
      }
    }
  }

  void Fail(std::string_view table, int index, std::string_view what) {
    if (problem_.empty()) problem_ = Cat(table, "[", index, "]: ", what);
  }
  void Text(std::string_view table, int index, std::string_view field, int64_t string) {
    if (string >= 0 && string < profile_.string_table_size()) return;
    Fail(table, index,
         Cat(field, field.empty() ? "" : " ", "is string ", string, ", and string_table has ",
             profile_.string_table_size()));
  }
  void CheckValueType(std::string_view table, int index, const pprof::ValueType& type) {
    Text(table, index, "type", type.type());
    Text(table, index, "unit", type.unit());
  }

  pprof::Profile& profile_;
  const std::string& name_;
  Numbers locations_;
  std::string problem_;
};

// The number of bytes that the parser may still allocate. It is a variable of the thread, because protobuf's arena
// takes its allocator as a plain function, without an argument for state.
thread_local size_t parse_budget = 0;

void* AllocateBlock(size_t bytes) {
  if (bytes > parse_budget) throw std::bad_alloc();
  parse_budget -= bytes;
  return ::operator new(bytes);
}
void FreeBlock(void* block, size_t) { ::operator delete(block); }

google::protobuf::ArenaOptions BoundedArena() {
  google::protobuf::ArenaOptions options;
  options.max_block_size = 1 << 20;
  options.block_alloc = AllocateBlock;
  options.block_dealloc = FreeBlock;
  return options;
}

}  // namespace

RawProfile::RawProfile()
    : arena_(std::make_unique<google::protobuf::Arena>(BoundedArena())),
      message_(google::protobuf::Arena::CreateMessage<pprof::Profile>(arena_.get())) {}

absl::StatusOr<RawProfile> ParseProfile(std::string_view bytes, const std::string& name) {
  size_t input_bytes = bytes.size();
  if (bytes.empty()) return Invalid(name, "is empty; the program was probably killed before it wrote the profile");
  std::string plain;
  if (bytes.substr(0, 2) == "\x1f\x8b") {
    ASSIGN_OR_RETURN(plain, Gunzip(bytes, name));
    bytes = plain;
    if (bytes.empty()) return Invalid(name, "is empty once decompressed");
    if (const size_t least = bytes.size() / kInputShare; least > input_bytes) {
      CountInput(least - input_bytes);
      input_bytes = least;
    }
  }
  try {
    parse_budget = std::min(std::max(bytes.size() * kMaxExpansion, kMinParsedBytes), MemoryFor(input_bytes));
    RawProfile profile;
    if (!profile.message_->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
      return Invalid(name, "this is not a pprof profile, or a damaged one: copy it again or write a new one");
    }
    RETURN_IF_ERROR(Checker(*profile.message_, name).Check());
    // Later allocations belong to the tool and not to the file.
    parse_budget = SIZE_MAX;
    return profile;
  } catch (const std::bad_alloc&) {
    return ResourceExhausted(name, ": needs much more memory than a usual profile of its size (", bytes.size(),
                             " bytes); the limit for this file is ",
                             Bytes(static_cast<int64_t>(MemoryFor(input_bytes))), kMoreMemory);
  }
}

}  // namespace hbmprof::tool
