#include "tests/nodes/draws.h"

#include <algorithm>
#include <cmath>

#include "importer/proto/onnx_protos.h"
#include "kernels/base/status.h"

namespace ofsdp::nodes {
namespace {

using Values = std::vector<double>;

bool has_node(const NodeTest& test, const char* op) {
  return std::ranges::any_of(test.model.graph().node(),
                             [op](const auto& node) { return node.op_type() == op; });
}

Values values_of(const Constant& constant) {
  return to_doubles(constant.desc, constant.bytes.data());
}

// Checks a number of hits against the sum of the chances.
Status check_count(double hits, const Values& chances) {
  double mean = 0, variance = 0;
  for (const double p : chances) {
    mean += p;
    variance += p * (1 - p);
  }
  const double most = 4 * std::sqrt(variance) + 1e-9;
  OFSDP_REJECT_IF(std::abs(hits - mean) > most, "expected {} +- {} hits, found {}", mean, most,
                  hits);
  return ok_status();
}

// y is 1 with chance p, else 0. ONNX's body for Bernoulli asks whether a draw is above p, so there
// the chance is 1 - p.
Status compare_bernoulli(const Values& p, const Values& y, bool above) {
  Values chances;
  double hits = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    OFSDP_REJECT_IF(y[i] != 0 && y[i] != 1, "expected 0 or 1, found {}", y[i]);
    chances.push_back(above ? 1 - p[i] : p[i]);
    hits += y[i];
  }
  return check_count(hits, chances);
}

// y is x / (1 - ratio) where the element is kept, else 0; the mask, if any, tells which.
Status compare_dropout(const Values& x, double ratio, const Values& y, const Values& mask) {
  double kept = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    const double whole = x[i] / (1 - ratio);
    const bool is_kept = mask.empty() ? y[i] != 0 : mask[i] != 0;
    const double expected = is_kept ? whole : 0;
    OFSDP_REJECT_IF(std::abs(y[i] - expected) > 1e-5 * std::abs(whole),
                    "element {}: expected {}, found {}", i, expected, y[i]);
    kept += is_kept ? 1 : 0;
  }
  return check_count(kept, Values(y.size(), 1 - ratio));
}

}  // namespace

std::optional<Status> compare_draws(const NodeTest& test, const DataSet& data,
                                    const std::vector<Constant>& found) {
  const bool dropout = has_node(test, "Dropout");
  const bool above = has_node(test, "RandomUniformLike");
  if (!has_node(test, "Bernoulli") && !above && !(dropout && data.inputs.size() == 3)) return {};
  std::vector<Values> inputs;
  for (const TestValue& input : data.inputs) {
    auto constant = constant_from_onnx(input.tensor);
    if (!constant.ok()) return std::move(constant).status();
    inputs.push_back(values_of(**constant));
  }
  const Values y = values_of(found[0]);
  if (y.size() != inputs[0].size()) {
    return input_error("expected {} elements, found {}", inputs[0].size(), y.size());
  }
  if (!dropout) return compare_bernoulli(inputs[0], y, above);
  return compare_dropout(inputs[0], inputs[1][0], y,
                         found.size() > 1 ? values_of(found[1]) : Values());
}

}  // namespace ofsdp::nodes
