// Predictions that a loss takes for something else: probabilities for scores (a Softmax that does
// not end the graph, or one in pieces), scores for probabilities or for their logarithms.
//
// Computes the predictions of the first rows with the weights of the file, node by node on the CPU.
// Only a prediction whose last node leaves it open is computed, in about a second at most; a graph
// that takes longer, or cannot be computed so, is left out. No collective. Threads: one.
#pragma once

#include <string>
#include <vector>

#include "runtime/train/setup/model_setup.h"

namespace ofsdp::runtime {

struct UnfitPrediction {
  std::string problem;  // "the prediction 'p' has ..."
  std::string option;   // the loss that fits: "--loss nll_probabilities"
};

// At most one for each loss. REQUIRES: the data are bound.
std::vector<UnfitPrediction> unfit_predictions(const ModelSetup& setup);

}  // namespace ofsdp::runtime
