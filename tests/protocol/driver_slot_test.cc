#include "src/protocol/driver_slot.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace hbmprof_test {
namespace {

using hbmprof::internal::DriverSlotOfArm;
using hbmprof::internal::DriverSlotOfX86;
using hbmprof::internal::kDriverEntryBytesArm;
using hbmprof::internal::kDriverEntryBytesX86;

uint64_t SlotOfArm(std::vector<uint32_t> words, uint64_t address) {
  words.resize(kDriverEntryBytesArm / sizeof(uint32_t));
  return DriverSlotOfArm(reinterpret_cast<const unsigned char*>(words.data()), address);
}

// The functions of the drivers that Debian has for arm64.

TEST(DriverSlotTest, Arm470) {
  EXPECT_EQ(SlotOfArm({0xf0009483, 0x52974002, 0x72a64382, 0xb94b1063, 0x6b02007f, 0x540000a0, 0xd0008cc2, 0xf9460042,
                       0xd61f0040},
                      0x21c7b8),
            0x13b6000u + 3072);
}

TEST(DriverSlotTest, Arm550WithAMove) {
  EXPECT_EQ(SlotOfArm({0x9000c783, 0x52974002, 0x72a64382, 0xb948a863, 0x6b02007f, 0x540000a0, 0xb000c002, 0xf947ec42,
                       0xaa0203f0, 0xd61f0200},
                      0x255ca0),
            0x1a56000u + 4056);
}

// cuMemsetD8 makes its argument shorter.
TEST(DriverSlotTest, Arm550WithAnInstructionBetween) {
  EXPECT_EQ(SlotOfArm({0xf000c544, 0x52974003, 0x12001c21, 0x72a64383, 0xb948a884, 0x6b03009f, 0x540000a0, 0xb000bde3,
                       0xf9400463, 0xaa0303f0, 0xd61f0200},
                      0x29a3f0),
            0x1a57000u + 8);
}

// cuIpcOpenMemHandle copies its argument, and calls.
TEST(DriverSlotTest, Arm550WithACall) {
  EXPECT_EQ(SlotOfArm({0xf000c724, 0xaa0103e3, 0x52974001, 0xb948a884, 0x72a64381, 0x6b01009f, 0x54000220,
                       0xa9bb7bfd, 0xb000bfc4, 0x910003fd, 0xa9401c66, 0x910043e1, 0xa9011fe6, 0xa9411c66,
                       0xf944fc84, 0xa9011c26, 0xa9421c66, 0xa9021c26, 0xa9431c66, 0xa9031c26, 0xd63f0080},
                      0x25e194),
            0x1a57000u + 2552);
}

TEST(DriverSlotTest, OtherFormsHaveNone) {
  // Without the comparison with 0x321cba00, and with another branch before it.
  EXPECT_EQ(SlotOfArm({0xb000c002, 0xf947ec42, 0xd61f0040}, 0x255ca0), 0u);
  EXPECT_EQ(SlotOfArm({0x52974002, 0x72a64382, 0x94000010, 0x540000a0, 0xb000c002, 0xf947ec42, 0xd61f0040}, 0), 0u);
  // No instruction at all.
  EXPECT_EQ(SlotOfArm({}, 0x255ca0), 0u);
}

uint64_t SlotOfX86(std::vector<unsigned char> code, uint64_t address) {
  code.resize(kDriverEntryBytesX86, 0xcc);
  return DriverSlotOfX86(code.data(), address);
}

constexpr unsigned char kOf550[] = {0x81, 0x3d, 0x16, 0x22, 0x8d, 0x01, 0x00, 0xba, 0x1c, 0x32, 0x74,
                                    0x0c, 0xff, 0x25, 0xee, 0xab, 0x7d, 0x01, 0x66, 0x0f, 0x1f, 0x44};
constexpr unsigned char kOf580[] = {0x55, 0x48, 0x89, 0xe5, 0x41, 0x54, 0x48, 0x83, 0xec, 0x08, 0x81, 0x3d,
                                    0xbc, 0xa3, 0x8a, 0x05, 0x00, 0xba, 0x1c, 0x32, 0x0f, 0x84, 0x96, 0x00,
                                    0x00, 0x00, 0xff, 0x15, 0xd8, 0x47, 0x8a, 0x05, 0x41, 0x89, 0xc4};
constexpr unsigned char kOf615[] = {0x81, 0x3d, 0xbe, 0x6c, 0x7b, 0x06, 0x00, 0xba, 0x1c, 0x32, 0x74, 0x34, 0x55, 0x48,
                                    0x89, 0xe5, 0x48, 0x83, 0xec, 0x10, 0xff, 0x15, 0x8e, 0x03, 0x7b, 0x06, 0x85, 0xc0};

template <size_t size>
std::vector<unsigned char> Bytes(const unsigned char (&code)[size]) {
  return std::vector<unsigned char>(code, code + size);
}

// Functions of real drivers.

TEST(DriverSlotTest, X86Of550) { EXPECT_EQ(SlotOfX86(Bytes(kOf550), 0x2926b0), 0x1a6d2b0u); }

TEST(DriverSlotTest, X86WithALandingPad) {
  std::vector<unsigned char> code = Bytes(kOf550);
  constexpr unsigned char kEndbr64[] = {0xf3, 0x0f, 0x1e, 0xfa};
  code.insert(code.begin(), kEndbr64, kEndbr64 + 4);
  EXPECT_EQ(SlotOfX86(code, 0x2926ac), 0x1a6d2b0u);
}

TEST(DriverSlotTest, X86Of580) { EXPECT_EQ(SlotOfX86(Bytes(kOf580), 0x1000), 0x1000u + 32 + 0x58a47d8); }

TEST(DriverSlotTest, X86Of615) { EXPECT_EQ(SlotOfX86(Bytes(kOf615), 0x1000), 0x1000u + 26 + 0x67b038e); }

// cuIpcOpenMemHandle of 580, which gets 64 bytes by value; cuLibraryLoadData of 615, which has 8 arguments.
TEST(DriverSlotTest, X86WithArgumentsOnTheStack) {
  std::vector<unsigned char> code(kOf580, kOf580 + 26);
  for (unsigned char at = 0x48; at >= 0x10; at = static_cast<unsigned char>(at - 8)) {
    code.insert(code.end(), {0xff, 0x75, at});
  }
  code.insert(code.end(), kOf580 + 26, kOf580 + 32);
  EXPECT_EQ(SlotOfX86(code, 0x1000), 0x1000u + 56 + 0x58a47d8);
  code.assign(kOf615, kOf615 + 20);
  code.insert(code.end(), {0x8b, 0x45, 0x18, 0x50, 0xff, 0x75, 0x10});
  code.insert(code.end(), kOf615 + 20, kOf615 + 26);
  EXPECT_EQ(SlotOfX86(code, 0x1000), 0x1000u + 33 + 0x67b038e);
}

TEST(DriverSlotTest, OtherFormsOfX86HaveNone) {
  for (const auto& code : {Bytes(kOf550), Bytes(kOf580), Bytes(kOf615)}) {
    for (size_t cut = 0; cut < 14; ++cut) EXPECT_EQ(SlotOfX86({code.begin(), code.begin() + cut}, 0x1000), 0u);
    // Another number in the comparison, no comparison at all, and no branch.
    std::vector<unsigned char> other = code;
    *std::find(other.begin(), other.end(), 0xba) = 0xbb;
    EXPECT_EQ(SlotOfX86(other, 0x1000), 0u);
    other = code;
    const auto comparison = std::find(other.begin(), other.end(), 0x81);
    EXPECT_EQ(SlotOfX86({other.begin() + (comparison - other.begin() + 10), other.end()}, 0x1000), 0u);
    other.erase(comparison + 10, comparison + (comparison[10] == 0x74 ? 12 : 16));
    EXPECT_EQ(SlotOfX86(other, 0x1000), 0u);
  }
  // Pushes without end.
  EXPECT_EQ(SlotOfX86(std::vector<unsigned char>(kDriverEntryBytesX86, 0x55), 0x1000), 0u);
}

}  // namespace
}  // namespace hbmprof_test
