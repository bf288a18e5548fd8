// Mutants of the models in tests/fixtures, through import, specialization and plan in this process:
// each is planned or refused with one line; nothing else may happen.
//
// OFSDP_FUZZ_MUTANTS: how many (400); OFSDP_FUZZ_SEED: the seed for the first (1).
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "tests/support/namespaces.h"
#include "tests/support/onnx_bytes.h"
#include "tests/support/onnx_mutator.h"
#include "tests/support/operator_names.h"
#include "tests/support/plan_file.h"

namespace ofsdp {
namespace import_fuzz_test {

constexpr uintmax_t kLargest = 60'000;  // bytes in a model, so that many mutants fit into the time

uint32_t setting(const char* name, uint32_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : static_cast<uint32_t>(std::atoi(text));
}

std::vector<std::string> small_models() {
  std::vector<std::string> paths;
  const std::string folder = OFSDP_SOURCE_DIR "/tests/fixtures";
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    const bool model = entry.path().extension() == ".onnx" && entry.file_size() <= kLargest;
    const bool artifact = entry.path().string().find("/artifacts/") != std::string::npos;
    if (model && !artifact) paths.push_back(entry.path().string());
  }
  std::ranges::sort(paths);
  return paths;
}

std::vector<std::string> operators() {
  std::vector<std::string> names;
  for (const std::string& name : operator_names([](const OpDef&) { return true; })) {
    names.push_back(name.substr(name.rfind('.') + 1));
  }
  for (const char* name : {"If", "Loop", "Scan", "SequenceAt", "SplitToSequence"}) {
    names.emplace_back(name);
  }
  return names;
}

TEST(ImportFuzz, MutantsArePlannedOrRefused) {
  const uint32_t seed = setting("OFSDP_FUZZ_SEED", 1);
  const uint32_t count = setting("OFSDP_FUZZ_MUTANTS", 400);
  const std::vector<std::string> paths = small_models();
  ASSERT_GT(paths.size(), 10u);
  const Registry registry = make_registry();
  testing::OnnxMutator mutator(operators());
  const onnx_bytes::Folder folder;
  size_t planned = 0, refused = 0;
  for (uint32_t i = 0; i < count; ++i) {
    std::mt19937 random(seed + i);
    const std::string& from = paths[random() % paths.size()];
    SCOPED_TRACE(format_text("seed {} of {}", seed + i, from));
    const std::string path =
        folder.write("model.onnx", mutator.mutated(onnx_bytes::content(from), random));
    const LossKind loss = random() % 2 == 0 ? LossKind::kAuto : LossKind::kMse;
    const Status status = testing::plan_file(path, registry, loss);
    ++(status.ok() ? planned : refused);
    if (status.ok()) continue;
    EXPECT_EQ(status.message().find('\n'), std::string::npos) << status.message();
    EXPECT_FALSE(status.message().empty());
  }
  EXPECT_EQ(planned + refused, count);
  if (count >= 100) {
    EXPECT_GT(planned, count / 20) << "the mutants say nothing about what is behind the checks";
    EXPECT_GT(refused, count / 20);
  }
}

}  // namespace import_fuzz_test
}  // namespace ofsdp
