// A small ONNX model, made without ONNX: Y = Relu(MatMul(X, X)) for square matrices of floats.
#ifndef HBMPROF_TESTS_ADAPTERS_ONNX_MODEL_H_
#define HBMPROF_TESTS_ADAPTERS_ONNX_MODEL_H_

#include <cstdint>
#include <string>

namespace onnx_model {

// The fields of protobuf messages, by the field numbers of onnx.proto.
inline std::string Varint(uint64_t value) {
  std::string bytes;
  for (; value >= 128; value >>= 7) bytes += static_cast<char>(value | 128);
  return bytes + static_cast<char>(value);
}
inline std::string Number(int field, uint64_t value) {
  return Varint(static_cast<uint64_t>(field) << 3) + Varint(value);
}
inline std::string Bytes(int field, const std::string& value) {
  return Varint(static_cast<uint64_t>(field) << 3 | 2) + Varint(value.size()) + value;
}

inline std::string Matrix(const std::string& name, uint64_t side) {
  const std::string dimension = Bytes(1, Number(1, side));
  constexpr int kFloat = 1;
  return Bytes(1, name) + Bytes(2, Bytes(1, Number(1, kFloat) + Bytes(2, dimension + dimension)));
}
inline std::string Node(const std::string& type, const std::string& inputs, const std::string& output) {
  std::string node;
  for (const char input : inputs) node += Bytes(1, std::string(1, input));
  return node + Bytes(2, output) + Bytes(4, type);
}

inline std::string MatMulRelu(uint64_t side) {
  const std::string graph = Bytes(1, Node("MatMul", "XX", "T")) + Bytes(1, Node("Relu", "T", "Y")) + Bytes(2, "small") +
                            Bytes(11, Matrix("X", side)) + Bytes(12, Matrix("Y", side));
  return Number(1, 8) + Bytes(7, graph) + Bytes(8, Number(2, 13));  // IR version 8, operators of version 13
}

}  // namespace onnx_model

#endif  // HBMPROF_TESTS_ADAPTERS_ONNX_MODEL_H_
