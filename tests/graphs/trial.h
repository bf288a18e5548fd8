// A trial (trial.cpp): the library's own code trains one model (train.cpp) for one step in this
// process, against ReferenceRun on the same file.
//
// Plain gradient descent with a rate of 2^20 shows the gradient as the change of each weight, to
// float32's precision. Gradients of trained parameters are compared along random directions.
//
// Errors: `train` returns the product's errors; a model that the reference cannot compute is an
// error too.
#pragma once

#include <optional>
#include <string>

#include "fsdp/plan/plan.h"
#include "importer/graph/reference_run.h"
#include "importer/passes/passes.h"
#include "kernels/core/op_def.h"
#include "tests/support/namespaces.h"

namespace ofsdp::graphs {

// A way to train. All ways must give the same numbers.
struct Way {
  std::string name = "plain";
  DType param_dtype = DType::kFloat32;
  PassSwitches passes = {};
  bool recompute = false;
  int64_t accumulation = 1;
  int ranks = 1;  // separate processes
  Strategy strategy = Strategy::kFullShard;
  bool device = false;  // the one that OFSDP_CUDA_LIBRARY names

  int64_t micro_batches() const { return accumulation * ranks; }
};
std::vector<Way> all_ways();

struct Model {
  std::string bytes;                // a serialized ModelProto
  int64_t batch = 1;                // rows in a micro-batch
  uint64_t seed = 1;                // for directions
  std::optional<double> loss = {};  // for one micro-batch, computed by the generator
};

struct Gradient {
  std::string name;
  std::vector<double> values;
};
struct Trained {
  double loss = 0;
  std::vector<Gradient> gradients;
};
Result<Trained> train(const Registry& registry, const Model& model, const Way& way);

struct Expected {
  double loss = 0;
  struct Parameter {
    std::string name;
    std::vector<std::vector<double>> directions;
    std::vector<Slope> slopes;  // one for each direction
    std::vector<double>
        unsteady;  // the change in the slope when all the numbers move by float32's rounding
  };
  double unsteady_loss = 0;
  std::vector<Parameter> parameters;
  int kinks = 0;
};
// `rounding`: the error of the numbers in the way's type.
Result<Expected> expect(const Registry& registry, const Model& model, const Way& way,
                        double rounding);

// kAbsent: the device lacks a kernel, and the product says so before the run.
enum class Verdict { kRight, kWrong, kUnsteady, kRefused, kAbsent };
struct Judgement {
  Verdict verdict = Verdict::kRight;
  std::string line;  // the difference
};
Judgement judge(const Trained& found, const Expected& expected, bool narrow);

// Trains and judges one model in one way. The reference is computed once for all ways.
class Trial {
 public:
  Trial(const Registry& registry, Model model) : registry_(registry), model_(std::move(model)) {}
  Judgement in(const Way& way);

 private:
  std::string other_loss(const Expected& expected) const;
  Result<bool> jumps(const Way& way, const Trained& trained, const Expected& expected) const;

  const Registry& registry_;
  Model model_;
  std::map<std::string, Result<Expected>> expected_;
};

}  // namespace ofsdp::graphs
