// Training runs of the real program on the fixtures, for the tests in tests/procs: commands for the
// multi-layer perceptron in tests/fixtures/mlp and for the MNIST sample, and the written files.
//
// Errors: test failures.
#pragma once

#include <cstdlib>
#include <string>
#include <vector>

#include "tests/support/namespaces.h"
#include "tests/support/onnx_bytes.h"
#include "tests/support/run_program.h"

#ifndef OFSDP_FSDP_RUN
#error "only for tests, which know OFSDP_FSDP_RUN and OFSDP_SOURCE_DIR"
#endif

namespace ofsdp {

using Words = std::vector<std::string>;

inline Words operator+(Words left, const Words& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

inline std::string fixture(const std::string& name) {
  return OFSDP_SOURCE_DIR "/tests/fixtures/" + name;
}

inline std::string sample_model(const std::string& name) {
  return OFSDP_SOURCE_DIR "/samples/" + name;
}

// The program in this build, or the program that the environment names.
inline Words fsdp_run(const Words& words) {
  const char* other = std::getenv("OFSDP_FSDP_RUN");
  return Words{other != nullptr ? other : OFSDP_FSDP_RUN} + words;
}

inline Words ranks(int count) { return {"--nproc-per-node", std::to_string(count)}; }

// The settings that made the case's reference trajectory.
inline Words mlp_settings() {
  return {"--no-shuffle", "--optimizer",   "sgd",  "--lr",
          "0.05",         "--momentum",    "0.9",  "--weight-decay",
          "1e-4",         "--lr-schedule", "step", "--step-size",
          "16",           "--gamma",       "0.5",  "--schedule-unit",
          "step"};
}

inline Words mlp(const std::string& model = "model.onnx") {
  const Words loss = model == "model_with_loss.onnx" ? Words{} : Words{"--loss", "cross_entropy"};
  return fsdp_run({fixture("mlp/" + model)}) + mlp_settings() + loss;
}

inline Words mnist_settings() {
  return {"--no-shuffle", "--optimizer", "adadelta", "--lr",        "1",   "--loss",
          "nll",          "--labels",    "labels",   "--eval-data", "none"};
}

}  // namespace ofsdp
