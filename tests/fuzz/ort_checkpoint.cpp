// A libFuzzer target: any bytes as a checkpoint of ONNX Runtime. An accepted one names bytes that
// exist; nothing else may happen. tests/fuzz/run.sh builds and runs it.
#include <cstdint>
#include <cstdlib>

#include "importer/dialects/onnxruntime/ort_artifacts.h"
#include "tests/support/namespaces.h"

namespace {

void check(const std::vector<ofsdp::OrtTensor>& tensors, size_t size) {
  for (const ofsdp::OrtTensor& tensor : tensors) {
    const bool inside = tensor.offset >= 0 && tensor.bytes >= 0 &&
                        tensor.offset + tensor.bytes <= static_cast<int64_t>(size);
    if (!inside || tensor.shape.numel() > tensor.bytes) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto read = ofsdp::read_ort_checkpoint(std::as_bytes(std::span(data, size)));
  if (!read.ok()) return 0;
  check(read->trained, size);
  check(read->frozen, size);
  if (read->optimizer) {
    for (const auto& state : read->optimizer->parameters) check(state.moments, size);
  }
  // A checkpoint that was read can be written.
  if (!ofsdp::describe_ort_checkpoint(*read).ok()) std::abort();
  return 0;
}
