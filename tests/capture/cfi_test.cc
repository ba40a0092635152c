// Compares frame rules with those of elfutils, over all loaded libraries.
#include "src/capture/cfi.h"

#include <dlfcn.h>
#include <dwarf.h>
#include <elfutils/libdw.h>
#include <fcntl.h>
#include <gelf.h>
#include <gtest/gtest.h>
#include <link.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "src/capture/rules.h"

namespace capture_test {
namespace {

using hbmprof::internal::FrameRule;
using hbmprof::internal::kFpRegister;
using hbmprof::internal::kHasLinkRegister;
using hbmprof::internal::kReturnAddressRegister;
using hbmprof::internal::kSpRegister;
using hbmprof::internal::PackedRule;
using hbmprof::internal::ReadableRanges;
using hbmprof::internal::ReadFrameRule;

struct Object {
  std::string path;
  uintptr_t bias = 0;
  ReadableRanges readable;
  const void* eh_frame_hdr = nullptr;
};

std::vector<Object> LoadedObjects() {
  std::vector<Object> objects;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* context) {
        Object object;
        object.path = info->dlpi_name[0] == 0 ? "/proc/self/exe" : info->dlpi_name;
        object.bias = info->dlpi_addr;
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          if (info->dlpi_phdr[i].p_type == PT_LOAD && (info->dlpi_phdr[i].p_flags & PF_R) != 0) {
            const uintptr_t at = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
            object.readable.Add(at, at + info->dlpi_phdr[i].p_memsz);
          }
          if (info->dlpi_phdr[i].p_type == PT_GNU_EH_FRAME) {
            object.eh_frame_hdr = reinterpret_cast<const void*>(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
          }
        }
        if (object.path[0] == '/') static_cast<std::vector<Object>*>(context)->push_back(object);
        return 0;
      },
      &objects);
  return objects;
}

// The common notation of rules: the register and offset of the CFA, the offset of the saved fp, and the offset of the
// return address.
std::string Notation(char cfa_kind, int64_t cfa_offset, bool fp_saved, int64_t fp_offset, int64_t return_offset) {
  std::string text = std::string(1, cfa_kind) + std::to_string(cfa_offset);
  if (fp_saved) text += " fp" + std::to_string(fp_offset);
  return text + " ra" + std::to_string(return_offset);
}

std::string Ours(const FrameRule& rule) {
  switch (rule.kind) {
    case FrameRule::kNone:
      return "none";
    case FrameRule::kInexpressible:
      return "inexpressible";
    case FrameRule::kOutermost:
      return "outermost";
    case FrameRule::kCfaFromSp:
      return Notation('s', rule.cfa_offset, rule.fp_saved, rule.fp_offset, rule.return_offset);
    case FrameRule::kCfaFromFp:
      return Notation('f', rule.cfa_offset, rule.fp_saved, rule.fp_offset, rule.return_offset);
    case FrameRule::kCfaInSlot:
      return "special";
  }
  return "";
}

// The rule of elfutils: in the notation above if it has one of the simple forms, "special" if not, "" if there is none.
std::string Theirs(Dwarf_CFI* cfi, Dwarf_Addr address) {
  Dwarf_Frame* frame = nullptr;
  if (dwarf_cfi_addrframe(cfi, address, &frame) != 0) return "";
  struct Free {
    Dwarf_Frame* frame;
    ~Free() { free(frame); }
  } free_frame{frame};
  Dwarf_Op storage[3];
  Dwarf_Op* ops;
  size_t count;
  if (dwarf_frame_register(frame, kReturnAddressRegister, storage, &ops, &count) != 0) return "";
  if (count == 0 && ops == storage) return "outermost";
  Dwarf_Op* cfa;
  size_t cfa_count;
  if (dwarf_frame_cfa(frame, &cfa, &cfa_count) != 0) return "";
  if (cfa_count != 1 || cfa[0].atom != DW_OP_bregx || (cfa[0].number != kSpRegister && cfa[0].number != kFpRegister)) {
    return "special";
  }
  const char kind = cfa[0].number == kSpRegister ? 's' : 'f';
  const auto cfa_offset = static_cast<int64_t>(cfa[0].number2);
  // Saved at CFA + offset: call_frame_cfa, plus_uconst offset.
  const auto offset_from_cfa = [&](int64_t* offset) {
    if (count == 0 || ops[0].atom != DW_OP_call_frame_cfa) return false;
    *offset = count == 1 ? 0 : static_cast<int64_t>(ops[1].number);
    return count <= 2;
  };
  int64_t ra_offset = 0;
  if (!offset_from_cfa(&ra_offset) || (!kHasLinkRegister && ra_offset != -8)) return "special";
  Dwarf_Op fp_storage[3];
  if (dwarf_frame_register(frame, kFpRegister, fp_storage, &ops, &count) != 0) return "";
  if (count == 0) return Notation(kind, cfa_offset, false, 0, ra_offset);  // the same, or undefined
  int64_t fp_offset = 0;
  if (!offset_from_cfa(&fp_offset)) return "special";
  return Notation(kind, cfa_offset, true, fp_offset, ra_offset);
}

// An empty slot of the table of rules is 0.
TEST(PackedRuleTest, RuleOfCodeWithoutUnwindInformationIsNotZero) {
  EXPECT_EQ(PackedRule::Of(FrameRule(), 0).kind(), FrameRule::kNone);
  EXPECT_NE(PackedRule::Of(FrameRule(), 0).word(), 0u);
}

TEST(FrameRuleTest, EqualsElfutilsInAllLoadedLibraries) {
  int64_t compared = 0;
  int64_t special = 0;
  int64_t inexpressible = 0;
  for (const Object& object : LoadedObjects()) {
    const int fd = open(object.path.c_str(), O_RDONLY);
    ASSERT_GE(fd, 0) << object.path;
    elf_version(EV_CURRENT);
    Elf* elf = elf_begin(fd, ELF_C_READ_MMAP, nullptr);
    ASSERT_NE(elf, nullptr) << object.path;
    Dwarf_CFI* cfi = dwarf_getcfi_elf(elf);
    size_t headers = 0;
    elf_getphdrnum(elf, &headers);
    int differences = 0;
    for (size_t i = 0; cfi != nullptr && i < headers; ++i) {
      GElf_Phdr header;
      gelf_getphdr(elf, static_cast<int>(i), &header);
      if (header.p_type != PT_LOAD || (header.p_flags & PF_X) == 0) continue;
      // The step is not a divisor of any alignment, so all positions in prologues occur.
      for (GElf_Addr at = header.p_vaddr; at < header.p_vaddr + header.p_filesz; at += 11) {
        const std::string theirs = Theirs(cfi, at);
        const std::string ours = Ours(ReadFrameRule(object.eh_frame_hdr, object.readable, object.bias + at));
        ++compared;
        if (theirs == "special") {
          ++special;
          inexpressible += ours == "inexpressible";
          if (ours == "special" || ours == "inexpressible" || ours == "outermost") continue;
        }
        if (theirs == ours || (theirs.empty() && (ours == "none" || ours == "outermost"))) continue;
        if (++differences > 3) continue;
        ADD_FAILURE() << object.path << " +0x" << std::hex << at << " " << ours << " != " << theirs;
      }
    }
    if (cfi != nullptr) dwarf_cfi_end(cfi);
    elf_end(elf);
    close(fd);
    EXPECT_EQ(differences, 0) << object.path;
  }
  EXPECT_GT(compared, 100000);
  RecordProperty("compared", std::to_string(compared));
  RecordProperty("special", std::to_string(special));
  RecordProperty("inexpressible", std::to_string(inexpressible));
  std::printf("%ld addresses, %ld of them special, %ld of those inexpressible\n", compared, special, inexpressible);
}

}  // namespace
}  // namespace capture_test
