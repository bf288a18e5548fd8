#include "kernels/optimizers/list.h"

namespace ofsdp::kernels {

std::vector<OptimizerDef> optimizer_list() {
  using namespace optimizers;
  return {adamw(), adam(), sgd(), adadelta(), adagrad(), lion(), lamb(), adamw_transformers()};
}

const OptimizerDef* find_optimizer(const std::string& name) {
  static const std::vector<OptimizerDef> list =
      optimizer_list();  // constant: definitions, no state
  for (const OptimizerDef& optimizer : list) {
    if (optimizer.name == name) return &optimizer;
  }
  return nullptr;
}

}  // namespace ofsdp::kernels
