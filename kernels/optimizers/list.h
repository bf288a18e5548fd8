// The one list of optimizers: a line each here and in list.cpp. kernels/core/optimizer.h says what
// an OptimizerDef is; each file holds the definition as a comment, the update and its reference in
// double.
#pragma once

#include "kernels/core/optimizer.h"

namespace ofsdp::kernels::optimizers {

OptimizerDef sgd();
OptimizerDef adam();
OptimizerDef adamw();
OptimizerDef adamw_transformers();
OptimizerDef adadelta();
OptimizerDef adagrad();
OptimizerDef lion();
OptimizerDef lamb();

}  // namespace ofsdp::kernels::optimizers
