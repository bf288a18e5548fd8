// ReferenceRun: a specialized graph computed in double by the operators' own references
// (OpDef::reference), node by node, every value kept. It knows no fusion, no layout, no 16-bit type
// and no gradient rule: the second, simpler way to a loss and its derivatives.
//
// Values are those of real numbers: nothing is rounded to the type of a tensor. An operator without
// a reference, of a plug-in, runs as its float32 kernel does; a change of its inputs is widened
// before the kernel sees it, and the change of its outputs is narrowed by the same factor.
//
// Rounding to a quantized tensor's integers has a derivative of 0: `slope` has in its place the
// function that training differentiates, where numbers keep the rounding that they have in `run`.
//
// `slope` gives the derivative of the loss along a direction by central differences with two
// widths. Where these two disagree, or the second differences are those of a corner, the point is a
// kink: another direction or another point has to be taken.
//
// Ownership: values; graph and context outlive it. Threads: one; `run` and `slope` change values.
// Errors: kInput for an operator with neither reference nor kernel, a value that nobody has set and
// a time limit.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <vector>

#include "importer/graph/graph.h"

namespace ofsdp::importer {

struct Slope {
  double value = 0;
  double error = 0;   // the most by which it may be wrong, as far as two widths tell
  bool kink = false;  // no derivative here
};

// A change of parameters or inputs: a number for each element.
using Direction = std::map<ValueId, std::vector<double>>;

class ReferenceRun {
 public:
  using Clock = std::chrono::steady_clock;

  // `step`: what random operators draw from.
  ReferenceRun(const Graph& graph, const StepContext& step);

  // No `run` or `slope` takes longer than until then; kInput "out of time". A node is not started
  // if it would end later, by the time that it took in the last `run`.
  void set_deadline(Clock::time_point deadline) { deadline_ = deadline; }

  void set(ValueId id, std::vector<double> values);
  Status run();

  // From the next `run` on each number that a node makes is off by up to that share, the same for
  // an element whenever it is made: the most that a type of fewer digits may change results.
  // Another `draw` gives other numbers. Given values stay as they were set.
  void disturb(double share, uint32_t draw = 0) {
    disturbance_ = share;
    draw_ = draw;
  }

  // REQUIRES: run.
  double loss() const { return loss_of({}); }
  const RefTensor& value(ValueId id) const { return values_[static_cast<size_t>(id)]; }
  bool has(ValueId id) const { return present_[static_cast<size_t>(id)]; }

  // The derivative at the values that were set, by each element's step times `direction`. REQUIRES:
  // `direction` has values that were set, and run.
  Result<Slope> slope(const Direction& direction);

  // The time of one pass through the nodes that see a change of a value, as they lasted in `run`.
  Clock::duration pass_behind(ValueId id) const;

  // The outputs of one node on the given inputs.
  Result<std::vector<RefTensor>> evaluate(const Node& node, std::vector<RefTensor> inputs) const;

  // The bytes that all values of a graph need here.
  static double bytes_of(const Graph& graph);

 private:
  using Changed = std::map<ValueId, RefTensor>;

  struct Differences {
    double first = 0;   // central difference
    double second = 0;  // second difference over the width
    double noise = 0;   // by which rounding may change `first`
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

  const Graph& graph_;
  const StepContext& step_;
  std::vector<RefTensor> values_;
  std::vector<bool> present_;
  std::optional<Clock::time_point> deadline_;
  std::vector<Clock::duration> lasted_;  // of each node in `run`
  double disturbance_ = 0;
  uint32_t draw_ = 0;
};

}  // namespace ofsdp::importer
