// Tokens out of range, which a Gather must not take: a copy of bert_tiny's data with one token
// overwritten. Ownership: the caller owns the folder. Threads: one. Errors: test failures.
#pragma once

#include <filesystem>

#include "tests/support/data_files.h"
#include "tests/support/namespaces.h"
#include "tests/support/training_runs.h"

namespace ofsdp {

struct Spoiled {
  const char* name;
  size_t token;
  int64_t value;
};

// Three updates with seven samples each, in file order; the folder gets the data.
inline Words train_spoiled(const testing_data::TempFolder& folder, const Spoiled& s) {
  const std::string data = folder.path() + "/data", from = fixture("bert_tiny");
  std::filesystem::copy(from + "/data", data);
  std::string bytes = onnx_bytes::content(data + "/input_ids.npy");
  const size_t header = bytes.find('\n') + 1;
  std::memcpy(bytes.data() + header + s.token * sizeof(int64_t), &s.value, sizeof(s.value));
  folder.write("data/input_ids.npy", bytes);
  return fsdp_run({from + "/model.onnx", "--loss", "cross_entropy", "--no-shuffle", "--batch-size",
                   "7", "--steps", "3", "--min-params", "1000", "--data", data, "--eval-data",
                   "none", "--output", folder.path() + "/out.onnx"});
}

// In the first and the second update.
inline std::vector<Spoiled> spoiled_data() {
  return {{"too_large", 8 * 32 + 5, 30000}, {"too_small", 0, -1001}};
}

}  // namespace ofsdp
