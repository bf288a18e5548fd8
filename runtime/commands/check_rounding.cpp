// Decides if rounding explains that training and the reference differ.
#include <algorithm>
#include <cmath>

#include "runtime/commands/commands.h"

namespace ofsdp::runtime {
namespace {

constexpr double kSafety = 4;    // on the largest change that was seen
constexpr uint32_t kEnough = 6;  // draws; fewer are a poor estimate of the largest change
constexpr double kHidden = 0.1;  // of a derivative; if rounding may hide more, nothing is decided

// Larger numbers have no digits for scores: in float32 their neighbours are an eighth away.
constexpr double kNoDigits = 1 << 20;

// NaN has no order.
double ordered(double v) { return std::isnan(v) ? HUGE_VAL : v; }

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

// Returns whether a row along the axis has only finite numbers beyond kNoDigits.
bool has_row_without_digits(const RefTensor& x, int64_t axis) {
  const Shape& shape = x.desc.shape;
  if (axis < 0) axis += shape.rank();
  if (axis < 0 || axis >= shape.rank() || shape[static_cast<int>(axis)] < 2) return false;
  int64_t inner = 1;
  for (auto i = static_cast<int>(axis) + 1; i < shape.rank(); ++i) inner *= shape[i];
  const int64_t n = shape[static_cast<int>(axis)];
  std::vector<double> largest(x.values.size() / static_cast<size_t>(n), -HUGE_VAL);
  for (size_t i = 0; i < x.values.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    double& row = largest[static_cast<size_t>(at / (n * inner) * inner + at % inner)];
    row = std::max(row, x.values[i]);
  }
  return std::ranges::any_of(largest,
                             [](double v) { return std::isfinite(v) && std::abs(v) > kNoDigits; });
}

// Returns the inputs that a softmax without digits in a row compares; none for other nodes.
std::vector<ValueId> lost_scores(const Node& node, const ReferenceRun& run) {
  const auto lost = [&](ValueId id, int64_t axis) {
    return id != 0 && run.has(id) && has_row_without_digits(run.value(id), axis);
  };
  if (is_operator(node, "Softmax") || is_operator(node, "LogSoftmax")) {
    if (lost(node.inputs[0], node.attributes.i("axis", -1))) return {node.inputs[0]};
  } else if (is_operator(node, "Attention") && node.inputs.size() > 3) {
    if (lost(node.inputs[3], -1)) return {node.inputs[0], node.inputs[1], node.inputs[3]};
  }
  return {};
}

}  // namespace

std::map<ValueId, std::string> before_rows_without_digits(const Graph& graph,
                                                          const ReferenceRun& run) {
  std::map<ValueId, std::string> before;
  for (size_t i = graph.nodes.size(); i-- > 0;) {
    const Node& node = graph.nodes[i];
    for (const ValueId id : lost_scores(node, run)) before.emplace(id, node.name);
    for (const ValueId made : node.outputs) {
      const auto found = before.find(made);
      if (found == before.end()) continue;
      for (const ValueId id : node.inputs) before.emplace(id, found->second);
    }
  }
  return before;
}

CheckedNumber::CheckedNumber(double trained, double reference)
    : reference_(reference), trained_{ordered(trained)} {}

void CheckedNumber::repeat(double trained) { trained_.push_back(ordered(trained)); }

// A change that is NaN allows nothing.
void CheckedNumber::disturb(double reference) {
  const double change = std::abs(reference - reference_);
  if (std::isfinite(change)) disturbed_ = std::max(disturbed_, change);
  ++disturbances_;
}

double CheckedNumber::apart() const { return ordered(std::abs(trained_[0] - reference_)); }

double CheckedNumber::mostly_apart() const {
  return std::min(apart(), ordered(std::abs(median(trained_) - reference_)));
}

double CheckedNumber::rounding() const {
  const double middle = median(trained_);
  double most = disturbed_;
  for (const double v : trained_) {
    if (std::isfinite(v - middle)) most = std::max(most, std::abs(v - middle));
  }
  return kSafety * most;
}

uint32_t CheckedNumber::draws() const {
  return static_cast<uint32_t>(trained_.size()) - 1 + disturbances_;
}

double CheckedNumber::cautious_rounding() const {
  const uint32_t least = std::max(draws(), 1U);
  return rounding() * std::max(1.0, static_cast<double>(kEnough) / least);
}

double CheckedParameter::most(double (CheckedNumber::*of)() const) const {
  double most = 0;
  for (const CheckedNumber& number : derivatives) most = std::max(most, (number.*of)());
  return most / scale;
}

double CheckedParameter::largest() const {
  double most = 0;
  for (const CheckedNumber& d : derivatives) most = std::max(most, std::abs(d.reference()));
  return most;
}

double CheckedParameter::excess() const {
  return most(&CheckedNumber::mostly_apart) - most(&CheckedNumber::rounding);
}

bool CheckedParameter::guessed() const {
  return std::ranges::any_of(derivatives,
                             [](const CheckedNumber& d) { return d.draws() < kEnough; });
}

bool CheckedParameter::decided(double limit) const {
  if (difference() <= limit || std::isinf(difference())) return true;
  if (derivatives[0].draws() == 0) return false;
  if (!(excess() <= limit)) {
    return !(most(&CheckedNumber::mostly_apart) - most(&CheckedNumber::cautious_rounding) <= limit);
  }
  // far below the derivatives of others, or with enough digits
  return scale > largest() || rounding() <= std::max(kHidden, 4 * limit);
}

}  // namespace ofsdp::runtime
