// The shared library of symbolize_program.cc: inlined, hidden, recursive, generic code between two exported functions.
#include <functional>
#include <numeric>
#include <vector>

using Record = void (*)(int id);

namespace engine {
namespace {

struct Layer {
  [[gnu::always_inline]] void Load(Record record, int id) { record(id); }
};

template <typename Work>
[[gnu::always_inline]] inline int Repeat(int times, const Work& work) {
  int sum = 0;
  for (int i = 0; i < times; ++i) sum += work(i);
  return sum;
}

[[gnu::noinline]] int Deeper(Record record, int depth) {
  if (depth == 0) {
    Layer layer;
    layer.Load(record, 1000);
    asm volatile("" ::: "memory");
    return 1;
  }
  const int below = Deeper(record, depth - 1);
  asm volatile("" ::: "memory");
  return below + 1;
}

}  // namespace

class Model {
 public:
  [[gnu::noinline]] int Build(Record record, const std::function<int(int)>& each) {
    const int sum = Repeat(3, [&](int i) {
      Layer layer;
      layer.Load(record, i);
      return each(i);
    });
    asm volatile("" ::: "memory");
    return sum;
  }
};

}  // namespace engine

extern "C" __attribute__((visibility("default"))) int engine_run(Record record) {
  engine::Model model;
  const int built = model.Build(record, [record](int i) {
    record(100 + i);
    asm volatile("" ::: "memory");
    return i;
  });
  const int depth = engine::Deeper(record, 5);
  asm volatile("" ::: "memory");
  return built + depth;
}
