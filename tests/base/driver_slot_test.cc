#include "src/base/driver_slot.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace hbmprof_test {
namespace {

using hbmprof::internal::DriverSlotOfArm;
using hbmprof::internal::DriverSlotOfX86;
using hbmprof::internal::kDriverEntryBytesArm;

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

TEST(DriverSlotTest, X86) {
  // cmpl $0x321cba00, flag(%rip); je; jmp *slot(%rip), as in the driver 550.
  const unsigned char code[] = {0x81, 0x3d, 0x16, 0x22, 0x8d, 0x01, 0x00, 0xba, 0x1c, 0x32, 0x74,
                                0x0c, 0xff, 0x25, 0xee, 0xab, 0x7d, 0x01, 0x66, 0x0f, 0x1f, 0x44};
  EXPECT_EQ(DriverSlotOfX86(code, 0x2926b0), 0x1a6d2b0u);
}

}  // namespace
}  // namespace hbmprof_test
