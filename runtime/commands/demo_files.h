// The files of `fsdp-run demo`: digits.onnx, a small convolutional network with random weights, and
// digits for it, drawn from a font of 5 x 7 dots. Everything follows from one fixed seed.
//
//   digits.onnx                  image float32 [batch, 1, 16, 16] -> logits [batch, 10]
//   data/image.npy, labels.npy   2,000 samples to train on; data/eval/ has 500 others
//
// One process writes a folder at a time. Threads: any. Errors: kFault where a file cannot be
// written.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/base/status.h"

namespace ofsdp::runtime {

inline constexpr int64_t kDemoTrainingSamples = 2000;
inline constexpr int64_t kDemoEvalSamples = 500;

// Returns the bytes of digits.onnx.
std::string demo_model();
// Writes both sets below `folder`, which is there.
Status write_demo_data(const std::string& folder);
// Replaces the file with these bytes.
Status write_demo_file(const std::string& path, const std::string& bytes);

}  // namespace ofsdp::runtime
