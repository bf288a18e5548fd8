// A fuzz target: any bytes as a model, imported and planned. Corpus: *.onnx.
#include <cstring>

#include "tests/fuzz/fuzz.h"
#include "tests/support/onnx_mutator.h"
#include "tests/support/operator_names.h"
#include "tests/support/plan_file.h"

namespace {

const ofsdp::Registry& registry() {
  static const ofsdp::Registry made = ofsdp::make_registry();
  return made;
}

std::vector<std::string> operators() {
  std::vector<std::string> names = {"If", "Loop", "Scan", "SequenceAt", "SplitToSequence"};
  for (const auto& [key, op] : registry().all()) names.push_back(op.name);
  return names;
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed) {
  static ofsdp::testing::OnnxMutator mutator(operators());
  std::mt19937 random(seed);
  const std::string made =
      mutator.mutated(std::string(ofsdp::fuzzing::text_of(data, size)), random);
  if (made.size() > most) return size;
  std::memcpy(data, made.data(), made.size());
  return made.size();
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string path =
      ofsdp::fuzzing::file_with("model.onnx", ofsdp::fuzzing::text_of(data, size));
  for (const auto loss : {ofsdp::LossKind::kAuto, ofsdp::LossKind::kMse}) {
    const ofsdp::Status status = ofsdp::testing::plan_file(path, registry(), loss);
    if (!status.ok()) ofsdp::fuzzing::check_message(status.message());
  }
  return 0;
}
