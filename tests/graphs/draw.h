// Draw: makes a DrawnGraph node by node from a seed. A recipe (operators.cpp, idioms.cpp,
// blocks.cpp) takes existing values, makes weights and constants and emits nodes. If it fails, it
// throws Refused, and the graph is as before.
//
// Each value is computed when it is drawn. So the product infers shapes, and numbers stay in a
// range in which float32 has digits: a node with an output beyond kLargest is refused.
//
// Ownership: the registry outlives it. Threads: one.
#pragma once

#include "tests/graphs/drawn_graph.h"

namespace ofsdp::graphs {

inline constexpr double kLargest = 40;
inline constexpr double kHidden = -1e9;        // a score hidden by a mask; no recipe reads it again
inline constexpr int64_t kMaxElements = 2000;  // in a value
inline constexpr int64_t kMissed = 4;          // one near miss in so many idioms

using Names = std::vector<std::string>;
using Axes = std::vector<int64_t>;

class Draw {
 public:
  Draw(const Registry& registry, uint64_t seed);

  const Registry& registry;
  DrawnGraph graph;
  std::mt19937_64 random;

  // --- choices ---
  int64_t below(int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); }
  int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }
  bool one_in(int64_t n) { return below(n) == 0; }
  double real(double low, double high) {
    return low + (high - low) * static_cast<double>(below(1 << 20)) / (1 << 20);
  }
  template <typename T>
  const T& one_of(const std::vector<T>& list) {
    return list[static_cast<size_t>(below(static_cast<int64_t>(list.size())))];
  }
  // Returns 0, or in a near miss the one different part: 1 .. parts.
  int64_t missed(int64_t parts) { return one_in(kMissed) ? between(1, parts) : 0; }

  // --- existing values ---
  const Axes& axes(const std::string& name) const { return graph.tensor(name).desc.shape.axes(); }
  int rank(const std::string& name) const { return static_cast<int>(axes(name).size()); }
  int64_t numel(const std::string& name) const { return graph.tensor(name).desc.numel(); }
  std::string any();                        // a float value
  std::string of_rank(int low, int high);   // made if none exists
  std::string of_shape(const Axes& shape);  // with that shape, made from an existing value
  // A value with at least `low` everywhere; a value between -high and high.
  std::string positive(double low);
  std::string bounded(double high);

  // --- new values ---
  std::string weight(const Axes& shape, double scale = 0);  // 0: by the size; may be shared
  std::string weight_of(const TensorDesc& desc, std::vector<double> values);
  std::string constant(const TensorDesc& desc, std::vector<double> values);
  std::string ints(const Axes& values) {
    return constant({DType::kInt64, {static_cast<int64_t>(values.size())}},
                    std::vector<double>(values.begin(), values.end()));
  }
  std::string scalar(double value) { return constant({DType::kFloat32, {}}, {value}); }
  std::string class_weights(int64_t classes);  // for a loss
  // A weight or a constant that broadcasts to `shape`.
  std::string fitting(const Axes& shape);

  Names emit(const std::string& op, const Names& inputs, const Attributes& attributes = {},
             size_t outputs = 1);
  std::string emit1(const std::string& op, const Names& inputs, const Attributes& attributes = {}) {
    return emit(op, inputs, attributes)[0];
  }
  // Both operand orders for an operator that commutes.
  std::string either(const char* op, const std::string& a, const std::string& b) {
    return one_in(2) ? emit1(op, {a, b}) : emit1(op, {b, a});
  }
  // No recipe reads the value again. A recipe may also raise `most_elements` for its own values.
  void hide(const std::string& name) { std::erase(floats_, name); }
  int64_t most_elements = kMaxElements;

  // Whether the opset has the operator.
  bool has(const std::string& op) const;

  // Values that nothing reads.
  const Names& leaves() const { return leaves_; }
  void finish();  // the loss over all leaves

 private:
  friend class Attempt;
  std::string fresh(const char* prefix) { return prefix + std::to_string(count_++); }
  void check(const std::string& op, const RefTensor& tensor) const;
  void go_around(DrawnNode& node, int64_t rounds);
  void check_jump(const DrawnNode& node, const std::vector<RefTensor>& made);
  bool within(const std::string& name, double bound) const;
  std::string term(const std::string& leaf);
  bool finish_with_labels();

  int64_t count_ = 0;
  Names floats_;  // in the order of creation
  Names leaves_;  // that nothing reads
  Names weights_;
};

struct Recipe {
  std::string name;
  int weight = 1;
  void (*draw)(Draw&, const std::string& name) = nullptr;
};
std::vector<Recipe> operator_recipes(const Registry& registry);
std::vector<Recipe> idiom_recipes();
std::vector<Recipe> block_recipes();

struct DrawSettings {
  uint64_t seed = 1;
  int most_nodes = 40;
  std::vector<std::string> only = {};  // recipes; empty: all
};
// A whole graph; `used` gets the recipes that worked.
DrawnGraph drawn(const Registry& registry, const DrawSettings& settings,
                 std::vector<std::string>* used = nullptr);

}  // namespace ofsdp::graphs
