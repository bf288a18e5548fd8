// Values for a SampleCase, and bytes of tensors with guards around them, for checks of
// operators.
//
// make_values fills the inputs as SampleCase says: normal(0, 1), integers -3..3 (0..3 unsigned),
// booleans at random, then `fill`; all rounded to their dtype, and the same for the same seed.
//
// GuardedBytes are aligned bytes between two guard zones; `intact()` tells whether anybody wrote
// there.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "kernels/core/op_def.h"
#include "tests/support/namespaces.h"
#include "tests/support/samples.h"

namespace ofsdp::testing {

struct CaseValues {
  std::vector<RefTensor> inputs;       // logical values, row-major whatever the layout
  std::vector<ConstantPtr> constants;  // for inputs the planner knows, else null
};

CaseValues make_values(const SampleCase& sample, uint64_t seed = 1);
std::vector<double> normals(size_t count, std::mt19937_64& random);
std::vector<float> normal_floats(size_t count, uint32_t seed);  // the same for the same seed

class GuardedBytes {
 public:
  GuardedBytes(size_t bytes, uint8_t garbage);  // `garbage` fills the bytes between the guards
  std::byte* data() { return storage_.data() + begin_; }
  const std::byte* data() const { return storage_.data() + begin_; }
  size_t size() const { return bytes_; }
  bool intact() const;
  bool operator==(const GuardedBytes& other) const;  // the bytes between the guards

 private:
  size_t bytes_;
  size_t begin_;
  std::vector<std::byte> storage_;
};

// Logical values to bytes in `desc`'s layout and pitch, and back.
void encode(const std::vector<double>& values, const TensorDesc& desc, std::byte* data);
std::vector<double> decode(const TensorDesc& desc, const std::byte* data);

}  // namespace ofsdp::testing
