// OrtCheckpoint: the file `checkpoint` of ONNX Runtime's training API without the bytes of its
// tensors; it has their places. A FlatBuffer with the identifier ODTC:
//
//   Checkpoint      0 version i32 | 1 ModuleState | 2 [OptimizerGroup] | 3 PropertyBag
//   ModuleState     0 [Tensor] trained | 1 [Tensor] frozen | 2 nominal u8 | 3 external data u8
//   OptimizerGroup  0 name | 1 step i64 | 2 learning rate f32 | 3 [ParameterState]
//   ParameterState  0 parameter's name | 1 [Tensor]: "momentum0", "momentum1"
//   PropertyBag     0 [Int] | 1 [Float] | 2 [String], each 0 name | 1 value (i64, f32, text)
//   Tensor          0 name | 2 dims [i64] | 3 ONNX type i32 | 4 data [u8] | 6 external offset i64
//
// describe_ort_checkpoint begins such a file: its text, and the place of each tensor's bytes, whose
// number goes into the four bytes before them.
//
// All members are values. Threads: any. Errors: kInput, without the file's name: damaged or foreign
// bytes, an unknown version, a tensor whose bytes do not match its shape, two tensors of one name.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "kernels/base/status.h"
#include "kernels/core/shape.h"

namespace ofsdp::importer {

struct OrtTensor {
  std::string name;
  int onnx_type = 1;  // TensorProto.DataType
  Shape shape;
  int64_t offset = 0;  // of its bytes in the file
  int64_t bytes = 0;
};

struct OrtParameterState {
  std::string parameter;
  std::vector<OrtTensor> moments;
};

struct OrtOptimizerState {
  std::string group;
  int64_t step = 0;  // updates so far
  float learning_rate = 1e-3f;
  std::vector<OrtParameterState> parameters;
};

struct OrtProperty {
  std::string name;
  std::variant<int64_t, float, std::string> value;
};

struct OrtCheckpoint {
  int version = 2;
  std::vector<OrtTensor> trained, frozen;
  std::optional<OrtOptimizerState> optimizer;
  std::vector<OrtProperty> properties;

  // The tensor of that name, trained or frozen, or null.
  const OrtTensor* tensor(const std::string& name) const;
  // The optimizer's state of a parameter, or null.
  const OrtParameterState* state_of(const std::string& parameter) const;
};

Result<OrtCheckpoint> read_ort_checkpoint(std::span<const std::byte> bytes);

// Returns the beginning of a file with these tensors and sets their `offset`s. kInput for more
// bytes than a FlatBuffer holds.
Result<std::string> describe_ort_checkpoint(OrtCheckpoint& checkpoint);

}  // namespace ofsdp::importer
