// A comparison of three forward passes on one made-up batch, training switches off: the graph with
// a checkpoint's values, the exported file, and the input file as it was.
//
// Threads: one. Errors: kInput where the model cannot be run by itself; those of
// the reader.
#pragma once

#include <map>

#include "fsdp/checkpoint/checkpoint_reader.h"
#include "importer/file/onnx_file.h"
#include "kernels/core/registry.h"

namespace ofsdp::runtime {

struct ForwardDifference {
  double exported = 0;   // largest difference of the exported file's outputs to the state's
  double input = 0;      // of the input file's
  double magnitude = 0;  // the state's largest output
};

// A file's own forward pass on the same made-up batch.
struct ForwardSample {
  struct Input {
    std::string name;
    TensorDesc desc;
    std::vector<std::byte> bytes;
  };
  std::vector<Input> inputs;
  std::map<std::string, std::vector<float>> outputs;
};

Result<ForwardSample> sample_forward(const OnnxFile& file, const Registry& registry);

Result<ForwardDifference> compare_forwards(const OnnxFile& input, const std::string& exported,
                                           CheckpointReader& checkpoint, const Registry& registry);

}  // namespace ofsdp::runtime
