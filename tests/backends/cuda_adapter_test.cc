// The logic of tracking CUDA memory, without CUDA: sizes, the order of events around the real calls, shared handles.
#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "hbmprof/profiler.h"
#include "src/backends/calls/events.h"
#include "src/backends/calls/memory.h"
#include "src/backends/cuda/driver/driver_structs.h"
#include "src/backends/cuda/shared/driver_abi.h"

namespace hbmprof::internal {
namespace {

// --- Sizes. ---

TEST(CudaSizesTest, PitchedBytesAreTheProduct) {
  EXPECT_EQ(PitchedBytes(512, 100), 51200u);
  EXPECT_EQ(PitchedBytes(1024, 10, 3), 30720u);
  EXPECT_EQ(PitchedBytes(512, 0), 0u);
  EXPECT_EQ(PitchedBytes(SIZE_MAX / 2, 3), SIZE_MAX) << "saturates";
}

struct FormatCase {
  int format;  // CUarray_format
  unsigned channels;
  size_t bytes;  // of 8 x 8 texels
};

TEST(CudaSizesTest, ArrayHasTheSizeOfItsFormat) {
  for (const FormatCase& c : std::vector<FormatCase>{
           {0x20, 1, 4 * 64},   // float
           {0x20, 4, 16 * 64},  // float4
           {0x01, 4, 4 * 64},   // uchar4
           {0x09, 2, 4 * 64},   // short2
           {0xc0, 1, 1 * 64},   // UNORM_INT8X1
           {0xca, 2, 4 * 64},   // SNORM_INT16X2
           {0x50, 4, 4 * 64},   // UNORM_INT_101010_2
           {0xb0, 3, 96},       // NV12: 1.5 bytes a texel
           {0x9f, 3, 192},      // P010
           {0xa2, 3, 128},      // NV16
           {0x91, 4, 32},       // BC1
           {0x93, 4, 64},       // BC2
           {0x97, 1, 32},       // BC4
           {0x99, 2, 64},       // BC5
           {0x9d, 4, 64},       // BC7
           {0x77, 1, 0},        // unknown
           {-8, 1, 0},
       }) {
    SCOPED_TRACE("format " + std::to_string(c.format));
    EXPECT_EQ(CudaArrayBytes(cuda_driver::ArrayDescriptor{8, 8, c.format, c.channels}), c.bytes);
  }
}

using cuda_driver::kArrayCubemap;
using cuda_driver::kArrayDeferredMapping;
using cuda_driver::kArrayLayered;
using cuda_driver::kArraySparse;

struct Shape {
  size_t width, height, depth;
  unsigned flags;
};
struct Format {
  int format;
  unsigned channels;
};
constexpr Format kFloat4 = {0x20, 4};
constexpr Format kBc7 = {0x9d, 4};
constexpr Format kNv12 = {0xb0, 3};

size_t ArrayBytes(const Format& format, const Shape& shape) {
  return CudaArrayBytes(cuda_driver::Array3dDescriptor{shape.width, shape.height, shape.depth, format.format,
                                                       format.channels, shape.flags});
}
size_t MipmappedBytes(const Format& format, const Shape& shape, unsigned levels) {
  return CudaMipmappedArrayBytes({shape.width, shape.height, shape.depth, format.format, format.channels, shape.flags},
                                 levels);
}

TEST(CudaSizesTest, ArrayCountsItsDimensions) {
  EXPECT_EQ(ArrayBytes(kFloat4, {100, 0, 0, 0}), 1600u) << "1D";
  EXPECT_EQ(ArrayBytes(kFloat4, {100, 50, 0, 0}), 80000u) << "2D";
  EXPECT_EQ(ArrayBytes(kFloat4, {100, 50, 10, 0}), 800000u) << "3D";
  EXPECT_EQ(ArrayBytes(kFloat4, {100, 0, 7, kArrayLayered}), 11200u) << "1D layered";
  EXPECT_EQ(ArrayBytes(kFloat4, {64, 64, 6, kArrayCubemap}), 393216u) << "six faces";
  EXPECT_EQ(ArrayBytes(kFloat4, {64, 64, 12, kArrayCubemap | kArrayLayered}), 786432u) << "two cubemaps";
  EXPECT_EQ(ArrayBytes(kFloat4, {0, 5, 5, 0}), 0u);
  EXPECT_EQ(ArrayBytes(kFloat4, {SIZE_MAX / 2, 4, 4, 0}), SIZE_MAX) << "saturates";
}

TEST(CudaSizesTest, CompressedArraysHaveWholeBlocks) {
  EXPECT_EQ(ArrayBytes(kBc7, {64, 64, 0, 0}), 16u * 16 * 16);
  EXPECT_EQ(ArrayBytes(kBc7, {65, 61, 0, 0}), 17u * 16 * 16);
  EXPECT_EQ(ArrayBytes(kBc7, {1, 1, 0, 0}), 16u);
  EXPECT_EQ(ArrayBytes(kNv12, {1920, 1080, 0, 0}), 1920u * 1080 * 3 / 2);
}

TEST(CudaSizesTest, SparseAndDeferredArraysHaveNoBytes) {
  EXPECT_EQ(ArrayBytes(kFloat4, {64, 64, 0, kArraySparse}), 0u);
  EXPECT_EQ(ArrayBytes(kFloat4, {64, 64, 0, kArrayDeferredMapping}), 0u);
  EXPECT_EQ(MipmappedBytes(kFloat4, {64, 64, 0, kArraySparse}, 7), 0u);
}

TEST(CudaSizesTest, MipmappedArrayIsSumOfLevels) {
  EXPECT_EQ(MipmappedBytes(kFloat4, {4, 4, 0, 0}, 1), 16u * 16);
  EXPECT_EQ(MipmappedBytes(kFloat4, {4, 4, 0, 0}, 2), 16u * (16 + 4));
  EXPECT_EQ(MipmappedBytes(kFloat4, {4, 4, 0, 0}, 3), 16u * (16 + 4 + 1));
  EXPECT_EQ(MipmappedBytes(kFloat4, {8, 2, 0, 0}, 4), 16u * (16 + 4 + 2 + 1)) << "no side below one texel";
  EXPECT_EQ(MipmappedBytes(kFloat4, {5, 0, 0, 0}, 3), 16u * (5 + 2 + 1)) << "rounded down, no second side";
  EXPECT_EQ(MipmappedBytes(kFloat4, {4, 4, 4, 0}, 3), 16u * (64 + 8 + 1)) << "depth shrinks";
  EXPECT_EQ(MipmappedBytes(kBc7, {8, 8, 0, 0}, 4), 16u * (4 + 1 + 1 + 1)) << "a block at least";
}

TEST(CudaSizesTest, LayersDoNotShrinkPerLevel) {
  EXPECT_EQ(MipmappedBytes(kFloat4, {4, 4, 5, kArrayLayered}, 3), 16u * 5 * (16 + 4 + 1));
  EXPECT_EQ(MipmappedBytes(kFloat4, {4, 4, 6, kArrayCubemap}, 2), 16u * 6 * (16 + 4));
}

TEST(CudaSizesTest, LevelsAreClampedAsInCuda) {
  const size_t all = 16u * (16 + 4 + 1);
  EXPECT_EQ(MipmappedBytes(kFloat4, {4, 4, 0, 0}, 99), all);
  EXPECT_EQ(MipmappedBytes(kFloat4, {4, 4, 0, 0}, UINT32_MAX), all);
  EXPECT_EQ(MipmappedBytes(kFloat4, {4, 4, 0, 0}, 0), 16u * 16) << "at least one";
  EXPECT_EQ(MipmappedBytes(kFloat4, {4, 4, 64, kArrayLayered}, 99), 64 * all) << "layers do not count";
  EXPECT_EQ(MipmappedBytes(kFloat4, {1, 1, 4, 0}, 99), 16u * (4 + 2 + 1)) << "depth does";
}

// --- Names. ---

TEST(CudaHandlesTest, IdsOfHandlesNeverCollide) {
  int object = 0;
  const uint64_t address = BufferId(&object).value();
  const uint64_t array = ArrayId(&object).value();
  const uint64_t mipmapped = MipmappedArrayId(&object).value();
  const uint64_t external = ExternalMemoryId(&object).value();
  EXPECT_NE(array, address);
  EXPECT_NE(mipmapped, address);
  EXPECT_NE(external, address);
  EXPECT_NE(array, mipmapped);
  EXPECT_NE(array, external);
  EXPECT_NE(mipmapped, external);
}

TEST(CudaHandlesTest, NullHandleIsNullId) {
  EXPECT_TRUE(ArrayId(nullptr).is_null());
  EXPECT_TRUE(MipmappedArrayId(nullptr).is_null());
  EXPECT_TRUE(ExternalMemoryId(nullptr).is_null());
}

// --- The order of events. ---

enum class Result { kGood, kBad };

class CudaOrderTest : public ::testing::Test {
 protected:
  int64_t InUse() const { return profiler_.Stats(kDefaultDevice).bytes_in_use; }

  [[gnu::noinline]] Result Make(Result result, void* ptr, size_t bytes) {
    const Caller caller = Caller::OfThisFunction();
    return AllocateAndRecord(
        profiler_, caller, Result::kGood,
        [&] {
          log_.push_back("allocate with " + std::to_string(InUse()) + " in use");
          return result;
        },
        [&] {
          log_.push_back("describe");
          return DriverBuffer{ptr, bytes, {}};
        },
        [](const DriverBuffer& buffer) {
          return Attributes{kDefaultDevice, buffer.kind, {}};
        });
  }
  Result Take(Result result, void* ptr) {
    return RemoveAndFree(profiler_, ptr, Result::kGood, [&] {
      log_.push_back("free with " + std::to_string(InUse()) + " in use");
      return result;
    });
  }

  Profiler profiler_;
  std::vector<std::string> log_;
  int place_ = 0;
};

TEST_F(CudaOrderTest, AllocationIsRecordedAfterSuccess) {
  EXPECT_EQ(Make(Result::kGood, &place_, 100), Result::kGood);
  EXPECT_EQ(log_, (std::vector<std::string>{"allocate with 0 in use", "describe"}));
  EXPECT_EQ(InUse(), 100);
}

TEST_F(CudaOrderTest, FailedAllocationIsNotRecorded) {
  EXPECT_EQ(Make(Result::kBad, &place_, 100), Result::kBad);
  EXPECT_EQ(log_, (std::vector<std::string>{"allocate with 0 in use"}));
  EXPECT_EQ(profiler_.Stats(kDefaultDevice).num_allocs, 0);
}

TEST_F(CudaOrderTest, DescribesNothingWhileOff) {
  profiler_.SetEnabled(false);
  EXPECT_EQ(Make(Result::kGood, &place_, 100), Result::kGood);
  EXPECT_EQ(log_.size(), 1u);
  EXPECT_EQ(Take(Result::kGood, &place_), Result::kGood);
  EXPECT_EQ(profiler_.GetTrackerStats().foreign_frees, 0);
}

TEST_F(CudaOrderTest, RecordIsRemovedBeforeFree) {
  Make(Result::kGood, &place_, 100);
  EXPECT_EQ(Take(Result::kGood, &place_), Result::kGood);
  EXPECT_EQ(log_.back(), "free with 0 in use");
  EXPECT_EQ(InUse(), 0);
}

TEST_F(CudaOrderTest, RefusedFreeEndsTheRecordAndIsCounted) {
  Make(Result::kGood, &place_, 100);
  EXPECT_EQ(Take(Result::kBad, &place_), Result::kBad);
  EXPECT_EQ(log_.back(), "free with 0 in use");
  EXPECT_EQ(InUse(), 0);
  EXPECT_EQ(profiler_.GetTrackerStats().refused_frees, 1);
  EXPECT_EQ(Take(Result::kBad, &place_), Result::kBad) << "of memory that has no record";
  EXPECT_EQ(profiler_.GetTrackerStats().refused_frees, 1);
  EXPECT_EQ(profiler_.GetTrackerStats().foreign_frees, 1);
}

// --- Shared handles. ---

class SharedOpeningsTest : public CudaOrderTest {
 protected:
  // As the wrapper of an opening call does it.
  void Open() {
    openings_.Open(&place_, kDefaultDevice, [&] { profiler_.RecordAlloc(&place_, 64); });
  }
  Result Close(Result result) {
    return TakeThenCall(
        profiler_, Result::kGood, [&] { return result; }, [&] { return openings_.Close(&place_); });
  }

  SharedOpenings openings_{profiler_};
};

TEST_F(SharedOpeningsTest, CountsOnceUntilLastClose) {
  Open();
  Open();
  EXPECT_EQ(InUse(), 64);
  EXPECT_EQ(profiler_.Stats(kDefaultDevice).num_allocs, 1);
  EXPECT_EQ(Close(Result::kGood), Result::kGood);
  EXPECT_EQ(InUse(), 64);
  EXPECT_EQ(Close(Result::kGood), Result::kGood);
  EXPECT_EQ(InUse(), 0);
  EXPECT_EQ(profiler_.GetTrackerStats().foreign_frees, 0);
  EXPECT_EQ(profiler_.GetTrackerStats().replaced_records, 0);
}

TEST_F(SharedOpeningsTest, UnknownCloseIsForwardedAndCounted) {
  EXPECT_EQ(Close(Result::kBad), Result::kBad);
  EXPECT_EQ(Close(Result::kGood), Result::kGood);
  EXPECT_EQ(profiler_.GetTrackerStats().foreign_frees, 2);
  Open();
  EXPECT_EQ(InUse(), 64) << "still the first open";
}

TEST_F(SharedOpeningsTest, RemovedDeviceStartsOver) {
  int recorded = 0;
  const auto open = [&] { openings_.Open(&place_, kDefaultDevice, [&] { ++recorded; }); };
  open();
  openings_.RemoveDevice(DeviceId{1});
  open();
  EXPECT_EQ(recorded, 1) << "another device's";
  openings_.RemoveDevice(kDefaultDevice);
  open();
  EXPECT_EQ(recorded, 2);
}

// Thread B opens the address while thread A closes it:
//
//   thread A: Close                        thread B: Open
//   removes the record, nothing is open
//     held in the real close until B is done
//                                          first opening: a new record
//   the real close returns: CUDA still has B's
TEST_F(SharedOpeningsTest, OpeningDuringLastCloseKeepsRecord) {
  Open();
  openings_.Close(&place_);
  Open();
  EXPECT_EQ(InUse(), 64);
  EXPECT_EQ(Close(Result::kGood), Result::kGood);
  EXPECT_EQ(InUse(), 0);
  EXPECT_EQ(profiler_.GetTrackerStats().replaced_records, 0);
  EXPECT_EQ(profiler_.GetTrackerStats().foreign_frees, 0);
}

}  // namespace
}  // namespace hbmprof::internal
