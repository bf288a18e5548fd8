// Computes a specialized graph in double with the operators' references (OpDef::reference), node by
// node, and keeps every value. It knows no fusion, layout, 16-bit type or gradient rule: a second,
// simpler way to the loss and the derivatives.
//
// Values are real numbers: nothing is rounded to a tensor's type. A plug-in operator without a
// reference runs as a float32 kernel. ReferenceRun widens an input change before that kernel, and
// narrows the output change by the same factor.
//
// Rounding to a quantized tensor's integers has derivative 0. There `slope` uses the function that
// training differentiates, in which numbers keep the rounding that they had in `run`.
//
// `slope` returns the loss's derivative along a direction, by central differences with two widths.
// If they disagree, or if the second differences show a corner, the point is a kink: take another
// direction or another point.
//
// Graph and context must outlive it. Threads: one. Errors: kInput if an operator has neither
// reference nor kernel, if a value is not set, or at the deadline.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <vector>

#include "importer/graph/graph.h"

namespace ofsdp::importer {

struct Slope {
  double value = 0;
  double error = 0;   // bound on the error, as far as two widths tell
  bool kink = false;  // no derivative here
};

// A change in parameters or inputs, one number per element.
using Direction = std::map<ValueId, std::vector<double>>;

class ReferenceRun {
 public:
  using Clock = std::chrono::steady_clock;

  // Random operators draw from `step`.
  ReferenceRun(const Graph& graph, const StepContext& step);

  // Ends `run` and `slope` at the deadline: kInput "out of time". A node does not start if, by the
  // time that it took in the last `run`, it would end later.
  void set_deadline(Clock::time_point deadline) { deadline_ = deadline; }

  void set(ValueId id, std::vector<double> values);
  // Gives a node's output as another program has it, which rounds to integers (fake_quantizes).
  // From the next `run` on, a number within a twentieth of a step of the border between two
  // integers falls on the same side as there.
  void set_sides(ValueId output, std::vector<double> made);
  Status run();

  // From the next `run` on, changes each number that a node makes by up to `share` times itself, by
  // the same amount whenever that element is made: at most as much as a type with fewer digits
  // would. Another `draw` gives other numbers. Values passed to `set` stay exact.
  void disturb(double share, uint32_t draw = 0) {
    disturbance_ = share;
    draw_ = draw;
  }

  // REQUIRES: run has succeeded.
  double loss() const { return loss_of({}); }
  const RefTensor& value(ValueId id) const { return values_[static_cast<size_t>(id)]; }
  bool has(ValueId id) const { return present_[static_cast<size_t>(id)]; }

  // Returns the derivative at the present values, each element moving by `direction`. REQUIRES: run
  // has succeeded, and all values in `direction` were passed to `set`.
  Result<Slope> slope(const Direction& direction);

  // Returns the time that the nodes took in `run` that depend on a value.
  Clock::duration pass_behind(ValueId id) const;

  // Computes one node's outputs on the given inputs.
  Result<std::vector<RefTensor>> evaluate(const Node& node, std::vector<RefTensor> inputs) const;

  // Returns the bytes that all values in a graph need here.
  static double bytes_of(const Graph& graph);
  // Estimates the seconds that `run` takes, from the operations.
  static double seconds_of(const Graph& graph);

 private:
  using Changed = std::map<ValueId, RefTensor>;

  struct Differences {
    double first = 0;   // central difference
    double second = 0;  // second difference over the width
    double noise = 0;   // rounding error in `first`
  };

  const RefTensor& at(ValueId id, const Changed& changed) const;
  Status take(const Node& node, const Changed* before, std::vector<RefTensor>& outputs) const;
  Result<std::vector<RefTensor>> by_kernel(const Node& node,
                                           const std::vector<RefTensor>& inputs) const;
  Result<std::vector<RefTensor>> by_widened_kernel(const Node& node,
                                                   const std::vector<RefTensor>& inputs) const;
  Result<double> moved_loss(const Direction& direction, double step) const;
  Result<Differences> differences(const Direction& direction, double step) const;
  Result<Slope> slope_of_width(const Direction& direction, double step) const;
  double width_of(const Direction& direction) const;
  double loss_of(const Changed& changed) const;
  void add_disturbance(const Node& node, std::vector<RefTensor>& outputs) const;
  Status in_time(const Node& node) const;
  void choose_sides(const Node& node, RefTensor& output);
  void keep_sides(const Node& node, RefTensor& output) const;

  const Graph& graph_;
  const StepContext& step_;
  std::vector<RefTensor> values_;
  std::vector<bool> present_;
  std::optional<Clock::time_point> deadline_;
  std::vector<Clock::duration> lasted_;  // by node, in `run`
  double disturbance_ = 0;
  uint32_t draw_ = 0;
  std::map<ValueId, std::vector<double>> sides_;  // see set_sides
  struct OtherSide {
    size_t element;
    double change;
  };
  std::map<ValueId, std::vector<OtherSide>> other_sides_;  // in `run`
};

}  // namespace ofsdp::importer
